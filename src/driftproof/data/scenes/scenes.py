"""`Scenes`: frames of driving scenes with their label images, read on demand."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from driftproof.data.images import to_rgb
from driftproof.data.open_image import check_pixels, open_image
from driftproof.data.scenes.classes import VOID, SceneClass
from driftproof.data.scenes.sizes import Box, FitHeight
from driftproof.errors import InputError
from driftproof.optional import require

__all__ = ["Scene", "Scenes"]

_ASPECT_TOLERANCE = 0.02


@dataclass(frozen=True)
class Scene:
    """The files of one frame.

    Attributes:
        frame: The image file.
        labels: The label image; None if there is none.
    """

    frame: Path
    labels: Path | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Scenes:
    """A sequence of frames, all of one size.

    Attributes:
        name: Name of the set in results, such as "cityscapes/val".
        scenes: The files, in stream order.
        palette: The classes in label order; empty without labels.
        label_reader: Reads a label image as classes, `UNKNOWN` and `VOID`.
        size: Size of the frames; None keeps the stored size, which all frames then have to share.
    """

    name: str
    scenes: tuple[Scene, ...]
    palette: tuple[SceneClass, ...] = ()
    label_reader: Callable[[Path], npt.NDArray[np.uint8]] | None = None
    size: FitHeight | None = None

    def __post_init__(self) -> None:
        if not self.scenes:
            raise InputError(f"Expected at least one frame in {self.name}, but found none.")

    def __len__(self) -> int:
        return len(self.scenes)

    def __repr__(self) -> str:
        return f"Scenes({self.name!r}, {len(self)} frames, {len(self.palette)} classes)"

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order."""
        return tuple(each.name for each in self.palette)

    @cached_property
    def extent(self) -> tuple[int, int]:
        """Height and width of every frame."""
        return self._fitted_extent(*_read_extent(self.scenes[0].frame))

    def read(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Return a frame, uint8 (3, H, W), and its labels, uint8 (H, W) or None.

        Args:
            index: Index of the frame.
        """
        return self.read_frame(index), self.read_labels(index)

    def read_frame(self, index: int) -> Tensor:
        """Return a frame without its labels, uint8 of shape (3, H, W).

        Args:
            index: Index of the frame.
        """
        scene = self._get_scene(index)
        frame = self._read_frame(scene.frame)
        if frame.shape[:2] != self.extent:
            (height, width), (other_height, other_width) = self.extent, frame.shape[:2]
            raise InputError(
                f"Expected the frames of {self.name} to have one size, but {self.scenes[0].frame} is {height}×{width} "
                f"and {scene.frame} is {other_height}×{other_width}. "
                f"Pass `size=FitHeight({height}, width={width})`, or `--height {height} --width {width}` to a command, "
                "to resize them and crop or pad their sides."
            )
        return torch.from_numpy(frame).permute(2, 0, 1).contiguous()

    def read_labels(self, index: int) -> Tensor | None:
        """Return the labels of a frame, uint8 of shape (H, W), or None.

        Args:
            index: Index of the frame.
        """
        scene = self._get_scene(index)
        return None if scene.labels is None else torch.from_numpy(self._read_labels(scene.labels, scene.frame))

    def content_box(self, index: int) -> Box:
        """Return the part of a frame that is not padding.

        Args:
            index: Index of the frame.
        """
        height, width = _read_extent(self._get_scene(index).frame)
        return (0, 0, height, width) if self.size is None else self.size.content_box(height, width)

    def _get_scene(self, index: int) -> Scene:
        if not 0 <= index < len(self):
            raise InputError(f"Expected an index in 0..{len(self) - 1} of {self.name}, but got {index}.")
        return self.scenes[index]

    def _fitted_extent(self, height: int, width: int) -> tuple[int, int]:
        return (height, width) if self.size is None else self.size.extent(height, width)

    def _read_frame(self, path: Path) -> npt.NDArray[np.uint8]:
        with open_image(path) as opened:
            self._check_extent(path, opened.height, opened.width)
            image = to_rgb(opened)
            return np.array(image if self.size is None else self.size.fit(image, smooth=True))

    def _check_extent(self, path: Path, height: int, width: int) -> None:
        """Raise `InputError` if a frame, low and wide, would have too many pixels after resizing."""
        if self.size is not None:
            check_pixels(path, *FitHeight(self.size.height).extent(height, width))

    def _read_labels(self, path: Path, frame: Path) -> npt.NDArray[np.uint8]:
        assert self.label_reader is not None  # label images come with a reader
        pillow = require("PIL.Image", "Reading label images")
        image = pillow.fromarray(self.label_reader(path))
        height, width = _read_extent(frame)
        self._check_extent(frame, height, width)
        if abs(image.width * height / (image.height * width) - 1) > _ASPECT_TOLERANCE:
            raise InputError(
                f"Expected {path} to label every pixel of {frame}, which is {height}×{width}, "
                f"but it is {image.height}×{image.width}."
            )
        if image.size != (width, height):
            image = image.resize((width, height), pillow.Resampling.NEAREST)
        return np.array(image if self.size is None else self.size.fit(image, smooth=False, padding=VOID))


def _read_extent(path: Path) -> tuple[int, int]:
    with open_image(path) as image:
        return image.height, image.width
