"""One image of a run: a file, or a frame of a video."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Frame", "format_name"]


@dataclass(frozen=True, eq=False)
class Frame:
    """An image to predict.

    Attributes:
        name: Its name in rows and messages.
        path: The file to read it from.
        image: Its pixels, where they are not a file's.
        error: Why there are no pixels; None if there may be.
    """

    name: str
    path: Path
    image: "Image | None" = None
    error: str | None = None

    @classmethod
    def from_path(cls, path: Path) -> "Frame":
        """Return the frame of an image file."""
        return cls(format_name(str(path)), path)


def format_name(text: str) -> str:
    """Return a file name as tables can store it: bytes that are not valid UTF-8 are written with backslashes."""
    return text.encode(errors="backslashreplace").decode()
