"""Opens image files within limits: regular files, known formats and a bounded number of pixels."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from driftproof.errors import ConfigurationError, InputError
from driftproof.files import check_regular_file
from driftproof.optional import require

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

__all__ = ["MAX_PIXELS", "check_pixels", "open_image"]

MAX_PIXELS = 36_000_000
"""Number of pixels that an image may have by default; a few kilobytes can claim many times more."""

_VARIABLE = "DRIFTPROOF_MAX_PIXELS"
# Others, such as EPS, would start another program.
_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


@contextmanager
def open_image(
    path: Path | str, content: BinaryIO | None = None, *, kind: str = "an image", max_pixels: int | None = None
) -> "Iterator[ImageFile]":
    """Yield an opened image file; whatever goes wrong meanwhile becomes an `InputError` with its name.

    Args:
        path: The file, or a name for `content`.
        content: What to read in place of the file, such as an upload; None reads the file.
        kind: What it should be, for the error message.
        max_pixels: Number of pixels it may have; None for that of the environment variable `DRIFTPROOF_MAX_PIXELS`, or
            else `MAX_PIXELS`.
    """
    pillow = require("PIL.Image", "Reading image files")
    try:
        if content is None:
            check_regular_file(Path(path))
        with pillow.open(path if content is None else content, formats=_FORMATS) as image:
            check_pixels(path, image.height, image.width, max_pixels)
            yield image
    except (InputError, ConfigurationError):
        raise
    # Pillow raises almost any exception for a damaged file.
    except Exception as error:
        reason = str(error) if content is None else str(error).replace(repr(content), "it")  # no addresses in memory
        raise InputError(f"Expected {path} to be {kind}, but it cannot be read: {reason}.") from error


def check_pixels(path: Path | str, height: int, width: int, max_pixels: int | None = None) -> None:
    """Raise `InputError` if an image is larger than `max_pixels`, as in `open_image`."""
    limit = _default_limit() if max_pixels is None else max_pixels
    if height * width > limit:
        raise InputError(
            f"Expected {path} to have at most {limit:,} pixels, but it has {height}×{width}. If you trust it, raise "
            f"`max_pixels` of `FileSet` or set the environment variable {_VARIABLE}."
        )


def _default_limit() -> int:
    text = os.environ.get(_VARIABLE)
    if text is None:
        return MAX_PIXELS
    if not text.isdecimal() or not int(text):
        raise ConfigurationError(f"Expected {_VARIABLE} to be a number of pixels of at least 1, but got {text!r}.")
    return int(text)
