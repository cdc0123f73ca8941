"""Images inside of pages."""

import base64
import io
from typing import TYPE_CHECKING, Literal

from driftproof.optional import require

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["embed", "scale_down"]


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
