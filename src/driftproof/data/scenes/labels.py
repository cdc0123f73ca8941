"""Readers for label images that store classes as IDs, palette indices or colors."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from driftproof.data.open_image import open_image
from driftproof.data.scenes.classes import Color
from driftproof.errors import InputError

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

__all__ = ["ColorLabels", "IdLabels"]

_UNMAPPED = -1


@dataclass(frozen=True)
class IdLabels:
    """Reads label images whose pixels are IDs: 8- or 16-bit gray, or palette indices.

    In 16-bit color images the first channel is the ID, as in SYNTHIA.

    Attributes:
        mapping: Class of each ID, `UNKNOWN` or `VOID`. Any other ID raises `InputError`.
        divisor: IDs are divided by this first; the remainder counts instances.
    """

    mapping: Mapping[int, int]
    divisor: int = 1

    def __call__(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the class of every pixel of a label image."""
        with open_image(path, kind="a label image") as image:
            ids = _read_ids(image, path) // self.divisor
        found = self._table[ids.clip(-1, len(self._table) - 1)]
        if (found == _UNMAPPED).any():
            _raise_unmapped(path, "IDs", ids[found == _UNMAPPED])
        classes: npt.NDArray[np.uint8] = found.astype(np.uint8)
        return classes

    @cached_property
    def _table(self) -> npt.NDArray[np.int16]:
        """Lookup table from ID to class; the last entry, also reached by index −1, is for unlisted IDs."""
        table = np.full(max(self.mapping) + 2, _UNMAPPED, dtype=np.int16)
        table[list(self.mapping)] = list(self.mapping.values())
        return table


@dataclass(frozen=True)
class ColorLabels:
    """Reads label images whose pixels are colors, with or without a palette.

    Attributes:
        mapping: Class of each color, `UNKNOWN` or `VOID`. Any other color raises `InputError`.
        gray: Reader for gray label images.
    """

    mapping: Mapping[Color, int]
    gray: IdLabels

    def __call__(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the class of every pixel of a label image."""
        with open_image(path, kind="a label image") as image:
            if image.mode not in ("P", "RGB", "RGBA"):
                return self.gray(path)
            colors = _pack_colors(np.asarray(image.convert("RGB")))
        known, classes = self._sorted_colors
        indices = np.searchsorted(known, colors).clip(max=len(known) - 1)
        if (known[indices] != colors).any():
            unmapped = colors[known[indices] != colors]
            _raise_unmapped(path, "colors", np.stack([unmapped >> 16, unmapped >> 8 & 255, unmapped & 255], axis=-1))
        found: npt.NDArray[np.uint8] = classes[indices]
        return found

    @cached_property
    def _sorted_colors(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        known = _pack_colors(np.array(list(self.mapping)))
        order = np.argsort(known)
        return known[order], np.array(list(self.mapping.values()), dtype=np.uint8)[order]


def _read_ids(image: "ImageFile", path: Path) -> npt.NDArray[np.int32]:
    if _is_deep_color(image):
        return _first_channel(image, path)
    if image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
        raise InputError(
            f"Expected the pixels of {path} to be label IDs, but it is an image of mode {image.mode}. "
            "Use the label ID files of the data set, not its color visualizations."
        )
    return np.asarray(image).astype(np.int32)


def _is_deep_color(image: "ImageFile") -> bool:
    return image.mode in ("RGB", "RGBA") and bool(image.tile) and image.tile[0][3] == f"{image.mode};16B"


def _first_channel(image: "ImageFile", path: Path) -> npt.NDArray[np.int32]:
    """Return the first channel with all 16 bits, which takes two reads: Pillow keeps one byte of each pair."""
    tile: Any = image.tile[0]
    with open_image(path) as swapped:
        swapped.tile = [tile._replace(args=f"{image.mode};16L")]
        low = np.asarray(swapped)[..., 0].astype(np.int32)
    return np.asarray(image)[..., 0].astype(np.int32) * 256 + low


def _pack_colors(colors: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    wide = colors.astype(np.int32)
    return wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]


def _raise_unmapped(path: Path, what: str, unmapped: npt.NDArray[Any]) -> None:
    distinct = np.unique(unmapped, axis=0).tolist()
    shown = ", ".join(map(str, distinct[:5])) + ", …" * (len(distinct) > 5)
    raise InputError(
        f"Expected only label {what} of the data set in {path}, but {len(unmapped)} pixels are {shown}. "
        "Check that the file belongs to this data set and was not resized with interpolation."
    )
