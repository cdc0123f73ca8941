"""Label images, whichever way they write a class: as a number, a place in a palette, a color."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from driftproof.data.scenes.classes import Color
from driftproof.errors import InputError
from driftproof.optional import require

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

__all__ = ["ColorLabels", "IdLabels"]

_UNMAPPED = -1


@dataclass(frozen=True)
class IdLabels:
    """Label images whose pixels are numbers: grey, of 8 or 16 bits, or places in a palette.

    Of 16-bit color images, the first channel is the number, as in SYNTHIA.

    Attributes:
        meanings: The class of each number, `UNKNOWN` or `VOID`. Any other number is an error.
        divisor: Numbers are divided by this first, the remainder counting instances.
    """

    mapping: Mapping[int, int]
    divisor: int = 1

    def __call__(self, path: Path) -> npt.NDArray[np.uint8]:
        """The class of every pixel of a label image."""
        with _opened(path) as image:
            numbers = _read_ids(image, path) // self.divisor
        found = self._table[numbers.clip(-1, len(self._table) - 1)]
        if (found == _UNMAPPED).any():
            _raise_unmapped(path, "numbers", numbers[found == _UNMAPPED])
        classes: npt.NDArray[np.uint8] = found.astype(np.uint8)
        return classes

    @cached_property
    def _table(self) -> npt.NDArray[np.int16]:
        """Class by number; the last row, which is also that before the first, stands for whatever is not listed."""
        table = np.full(max(self.mapping) + 2, _UNMAPPED, dtype=np.int16)
        table[list(self.mapping)] = list(self.mapping.values())
        return table


@dataclass(frozen=True)
class ColorLabels:
    """Label images whose pixels are colors, directly or through a palette.

    Attributes:
        meanings: The class of each color, `UNKNOWN` or `VOID`. Any other color is an error.
        grey: How to read an image that has no colors.
    """

    mapping: Mapping[Color, int]
    grey: IdLabels

    def __call__(self, path: Path) -> npt.NDArray[np.uint8]:
        """The class of every pixel of a label image."""
        with _opened(path) as image:
            if image.mode not in ("P", "RGB", "RGBA"):
                return self.grey(path)
            colors = _pack_colors(np.asarray(image.convert("RGB")))
        known, classes = self._sorted_colors
        places = np.searchsorted(known, colors).clip(max=len(known) - 1)
        if (known[places] != colors).any():
            strange = colors[known[places] != colors]
            _raise_unmapped(path, "colors", np.stack([strange >> 16, strange >> 8 & 255, strange & 255], axis=-1))
        found: npt.NDArray[np.uint8] = classes[places]
        return found

    @cached_property
    def _sorted_colors(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        known = _pack_colors(np.array(list(self.mapping)))
        order = np.argsort(known)
        return known[order], np.array(list(self.mapping.values()), dtype=np.uint8)[order]


@contextmanager
def _opened(path: Path) -> "Iterator[ImageFile]":
    pillow = require("PIL.Image", "Reading label images")
    try:
        with pillow.open(path) as image:
            yield image
    except InputError:
        raise
    # Pillow's readers let almost any exception through when a file is damaged.
    except Exception as error:
        raise InputError(f"Expected {path} to be a label image, but it cannot be read: {error}.") from error


def _read_ids(image: "ImageFile", path: Path) -> npt.NDArray[np.int32]:
    if _is_deep_color(image):
        return _first_channel(image, path)
    if image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
        raise InputError(
            f"Expected the pixels of {path} to be label numbers, but it is an image of mode {image.mode}. "
            "Take the data set's files of numbers, not those painted for people to look at."
        )
    return np.asarray(image).astype(np.int32)


def _is_deep_color(image: "ImageFile") -> bool:
    return image.mode in ("RGB", "RGBA") and bool(image.tile) and image.tile[0][3] == f"{image.mode};16B"


def _first_channel(image: "ImageFile", path: Path) -> npt.NDArray[np.int32]:
    """All 16 bits of the first channel. Pillow keeps the first byte of each pair; asked to swap them, the second."""
    tile: Any = image.tile[0]
    with require("PIL.Image", "Reading label images").open(path) as swapped:
        swapped.tile = [(*tile[:3], f"{image.mode};16L")]
        low = np.asarray(swapped)[..., 0].astype(np.int32)
    return np.asarray(image)[..., 0].astype(np.int32) * 256 + low


def _pack_colors(colors: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    wide = colors.astype(np.int32)
    return wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]


def _raise_unmapped(path: Path, what: str, strange: npt.NDArray[Any]) -> None:
    distinct = np.unique(strange, axis=0).tolist()
    shown = ", ".join(map(str, distinct[:5])) + ", …" * (len(distinct) > 5)
    raise InputError(
        f"Expected only label {what} of its data set in {path}, but {len(strange)} pixels are {shown}. "
        "Check that the file belongs to this data set and was not scaled smoothly."
    )
