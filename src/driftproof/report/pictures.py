"""A page of images that were refused, quarantined or raised alarms; images inside of pages."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from driftproof.optional import require
from driftproof.report.text import write_page

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Picture", "embed", "scale_down", "write_pictures"]

_WIDTH, _MAX_PICTURES = 160, 60


class Picture(NamedTuple):
    """An image file, the line below it, and its rank: the largest is shown first."""

    path: Path
    caption: str
    rank: float = 0.0


def write_pictures(
    groups: Mapping[str, Sequence[Picture]], out: Path, *, title: str, summary: str, facts: Mapping[str, str]
) -> Path:
    """Write a self-contained page with small copies of image files, by heading, after a sentence that sums them up.

    60 of each group are shown, all are counted; facts about the run follow.
    """
    read, shown = require("PIL.Image", "Writing a page of images").open, {}
    for heading, pictures in groups.items():
        first = sorted(pictures, key=lambda picture: -picture.rank)[:_MAX_PICTURES]
        copies = [embed(scale_down(read(picture.path).convert("RGB"), _WIDTH), "JPEG") for picture in first]
        shown[f"{heading}: {len(pictures)}"] = list(zip(first, copies, strict=True))
    return write_page("pictures.html", out, title=title, summary=summary, groups=shown, facts=facts)


def scale_down(image: "Image", width: int, *, is_photo: bool = True) -> "Image":
    """Return an image of at most this width; maps of classes keep their colors."""
    resampling = require("PIL.Image", "Scaling images").Resampling
    size = width, max(1, round(image.height * width / image.width))
    return image.resize(size, resampling.BICUBIC if is_photo else resampling.NEAREST) if image.width > width else image


def embed(image: "Image", kind: Literal["JPEG", "PNG"]) -> str:
    """Return an image as a data URL."""
    content = io.BytesIO()
    image.save(content, format=kind, quality=82, optimize=True)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content.getvalue()).decode()}"
