"""A page of images that were refused, quarantined or raised alarms; pictures inside of pages."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.report.render import render

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Picture", "data_url", "scale_down", "write_pictures"]

_WIDTH, _MAX_PICTURES = 160, 60


@dataclass(frozen=True)
class Picture:
    """An image file and what to say of it.

    Attributes:
        path: The file.
        caption: A line below it.
        rank: Pictures with the largest rank are shown first.
    """

    path: Path
    caption: str
    rank: float = 0.0


def write_pictures(
    groups: Mapping[str, Sequence[Picture]], out: Path, *, title: str, summary: str, facts: Mapping[str, str]
) -> Path:
    """Write a self-contained page with small copies of image files, the most striking of each group first.

    Args:
        groups: Pictures by heading; of each group, 60 are shown and all counted.
        out: The page.
        title: Of the page.
        summary: Its first sentence.
        facts: About the run, by name.
    """
    open_image = require("PIL.Image", "Writing a page of images").open
    shown = {}
    for heading, pictures in groups.items():
        first = sorted(pictures, key=lambda picture: -picture.rank)[:_MAX_PICTURES]
        urls = [data_url(scale_down(open_image(each.path).convert("RGB"), _WIDTH), "JPEG") for each in first]
        shown[f"{heading}: {len(pictures)}"] = list(zip(first, urls, strict=True))
    text = render("pictures.html", title=title, summary=summary, groups=shown, facts=facts)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return out


def scale_down(image: "Image", width: int, *, is_photo: bool = True) -> "Image":
    """Return an image of at most this width; maps of classes keep their colors."""
    if image.width <= width:
        return image
    resampling = require("PIL.Image", "Scaling images").Resampling
    height = max(1, round(image.height * width / image.width))
    return image.resize((width, height), resampling.BICUBIC if is_photo else resampling.NEAREST)


def data_url(image: "Image", kind: Literal["JPEG", "PNG"]) -> str:
    """Return an image as text that a page holds in place of a file."""
    content = io.BytesIO()
    image.save(content, format=kind, **({"quality": 82} if kind == "JPEG" else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content.getvalue()).decode()}"
