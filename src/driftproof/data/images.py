"""`ImageSet`, the interface of every data set, and its implementations."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from driftproof.data.open_image import check_pixels, open_image
from driftproof.errors import ConfigurationError, InputError
from driftproof.optional import require

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "ArraySet",
    "FileSet",
    "ImageSet",
    "ResizeExact",
    "ResizeShorterSide",
    "Size",
    "Subset",
    "decode_image",
    "resize_image",
    "to_rgb",
]


Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class ResizeShorterSide:
    """Resize the shorter side to `side` pixels, then crop the central square of `crop`, as for ImageNet."""

    side: int = 256
    crop: int = 224
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        if not 1 <= self.crop <= self.side:
            raise ConfigurationError(f"Expected 1 <= `crop` <= `side`, but got crop {self.crop} and side {self.side}.")


@dataclass(frozen=True)
class ResizeExact:
    """Resize to `height` and `width` pixels, ignoring the aspect ratio; a bilinear one is `(height, width)`."""

    height: int
    width: int
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 1:
            raise ConfigurationError(
                f"Expected `height` and `width` to be at least 1, but got {self.height} and {self.width}."
            )


Size = tuple[int, int] | ResizeExact | ResizeShorterSide | None


class ImageSet(ABC):
    """Base class of data sets: 8-bit images by index, with labels.

    Args:
        count: Number of images.
        labels: One integer per image, −1 for unlabeled ones; None if none is labeled.
        classes: Class names in label order; empty if unknown.
        name: Name of the set in results, such as "cifar10-c/gaussian_noise/5".

    Attributes:
        name: Name of the set.
        classes: Class names.
        labels: (N,) int64.
    """

    def __init__(
        self, count: int, labels: npt.ArrayLike | Tensor | None, *, classes: Sequence[str] = (), name: str
    ) -> None:
        if count == 0:
            raise InputError(f"Expected at least one image in {name}, but it is empty.")
        self.name = name
        self.classes = tuple(classes)
        self.labels = _validate_labels(labels, count, len(self.classes), name)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {len(self)} images, {len(self.classes)} classes)"

    @abstractmethod
    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return a copy of the images at these indices, uint8 of shape (n, 3, H, W)."""

    def fingerprint(self) -> str:
        """Return a short hash of the labels and of the pixels of up to 16 images."""
        content = hashlib.sha256(self.labels.numpy().tobytes())
        for index in torch.linspace(0, len(self) - 1, steps=min(len(self), 16)).long():
            content.update(self.batch(index[None]).numpy().tobytes())
        return f"{len(self)} images, {content.hexdigest()[:12]}"


class ArraySet(ImageSet):
    """Images in one uint8 array, which may be memory-mapped.

    Args:
        images: A numpy array or tensor of shape (N, H, W, 3) or (N, 3, H, W); the former if both fit.
        labels: As in `ImageSet`.
        classes: As in `ImageSet`.
        name: As in `ImageSet`.

    Examples:
        >>> gray = ArraySet(np.full((5, 32, 32, 3), 128, dtype=np.uint8), [0, 1, 0, 1, 0])
        >>> gray.batch([4, 0]).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        images: npt.NDArray[Any] | Tensor,
        labels: npt.ArrayLike | Tensor | None = None,
        *,
        classes: Sequence[str] = (),
        name: str = "array",
    ) -> None:
        if (
            images.ndim != 4
            or 3 not in (images.shape[1], images.shape[3])
            or images.dtype not in (np.uint8, torch.uint8)
        ):
            raise InputError(
                f"Expected the images of {name} to be uint8 of shape (N, H, W, 3) or (N, 3, H, W), "
                f"but got {images.dtype} of shape {tuple(images.shape)}."
            )
        super().__init__(len(images), labels, classes=classes, name=name)
        self._images = images
        self._channels_last = images.shape[3] == 3

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return the images at these indices."""
        indices = check_indices(indices, len(self))
        if isinstance(self._images, Tensor):
            picked = self._images[indices.to(self._images.device)]
        else:
            picked = torch.from_numpy(np.ascontiguousarray(self._images[indices.numpy()]))
        return picked.permute(0, 3, 1, 2).contiguous() if self._channels_last else picked


class FileSet(ImageSet):
    """Image files, decoded on demand.

    BMP, GIF, JPEG, JPEG 2000, PNG, PPM, TIFF and WebP become 8-bit RGB: gray is repeated, palettes are looked up,
    transparency is dropped, and of 16 bits the upper eight are kept. Orientation tags are ignored. Resizing is
    anti-aliased, and bilinear by default.

    Args:
        paths: The files.
        labels: As in `ImageSet`.
        size: (height, width) to resize to, ignoring the aspect ratio; a `ResizeExact` or `ResizeShorterSide`; None
            keeps the stored size, which the images of a batch then have to share.
        classes: As in `ImageSet`.
        name: As in `ImageSet`.
        workers: Number of decoding threads; None for one per core, at most 8.
        root: Folder whose sub-folders the files are in, if these matter; None if unknown.
        max_pixels: Number of pixels an image may have; None for that of the environment variable
            `DRIFTPROOF_MAX_PIXELS`, or else 36 million. Pillow refuses more than 178 million in any case.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        labels: npt.ArrayLike | Tensor | None = None,
        *,
        size: Size = None,
        classes: Sequence[str] = (),
        name: str = "files",
        workers: int | None = None,
        root: Path | None = None,
        max_pixels: int | None = None,
    ) -> None:
        super().__init__(len(paths), labels, classes=classes, name=name)
        if isinstance(size, tuple) and (len(size) != 2 or min(size) < 1):
            raise ConfigurationError(f"Expected `size` to be (height, width), both at least 1, but got {size}.")
        if workers is not None and workers < 1:
            raise ConfigurationError(f"Expected `workers` to be at least 1, but got {workers}.")
        if max_pixels is not None and max_pixels < 1:
            raise ConfigurationError(f"Expected `max_pixels` to be at least 1, but got {max_pixels}.")
        self.max_pixels = max_pixels
        self.paths = tuple(paths)
        self.root = root
        self.size = size
        self._workers = workers or min(8, os.cpu_count() or 1)

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return the images at these indices, decoded in parallel."""
        indices = check_indices(indices, len(self)).tolist()
        if not indices:
            return self.batch([0])[:0]
        paths = [self.paths[index] for index in indices]
        with ThreadPoolExecutor(self._workers) as pool:
            images = list(pool.map(self._decode, paths))
        for path, image in zip(paths, images, strict=True):
            if image.shape != images[0].shape:
                raise InputError(
                    f"Expected the images of a batch to have one size, but {paths[0]} is {_format_size(images[0])} "
                    f"and {path} is {_format_size(image)}. Pass `size` to resize them."
                )
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()

    def _decode(self, path: Path) -> npt.NDArray[np.uint8]:
        return decode_image(path, size=self.size, max_pixels=self.max_pixels)


class Subset(ImageSet):
    """A selection of images from another set, in any order; repeats are allowed.

    Args:
        images: The other set.
        indices: Indices of the images.
        name: Name of the subset; None for the name of the other set.

    Examples:
        >>> whole = ArraySet(np.zeros((5, 8, 8, 3), dtype=np.uint8), [0, 1, 2, 3, 4])
        >>> Subset(whole, [3, 3, 0]).labels
        tensor([3, 3, 0])
    """

    def __init__(self, images: ImageSet, indices: Sequence[int] | Tensor, *, name: str | None = None) -> None:
        indices = check_indices(indices, len(images))
        super().__init__(len(indices), images.labels[indices], classes=images.classes, name=name or images.name)
        self._images = images
        self._indices = indices

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return the images at these indices of the subset."""
        return self._images.batch(self._indices[check_indices(indices, len(self))])


def check_indices(indices: Sequence[int] | Tensor, count: int) -> Tensor:
    """Return the indices as a 1-D int64 tensor; raise `InputError` if one is outside 0..count − 1."""
    indices = indices if isinstance(indices, Tensor) else torch.tensor(list(indices))
    if indices.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    if indices.ndim != 1 or indices.dtype == torch.bool or indices.is_floating_point() or indices.is_complex():
        raise InputError(
            f"Expected `indices` to be a sequence of integers, but got {indices.dtype} of shape {tuple(indices.shape)}."
        )
    if indices.min() < 0 or indices.max() >= count:
        raise InputError(f"Expected indices in 0..{count - 1}, but got {int(indices.min())} to {int(indices.max())}.")
    return indices.to("cpu", torch.int64)


def _validate_labels(labels: npt.ArrayLike | Tensor | None, count: int, classes: int, name: str) -> Tensor:
    if labels is None:
        return torch.full((count,), -1)
    given = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if given.shape != (count,) or given.dtype.kind not in "iu":
        raise InputError(
            f"Expected one integer label for each of the {count} images of {name}, "
            f"but got {given.dtype} of shape {given.shape}."
        )
    if given.min() < -1 or int(given.max()) >= (classes or 2**63):
        allowed = f"in -1..{classes - 1}" if classes else "of at least -1"
        raise InputError(f"Expected labels of {name} {allowed}, but got {int(given.min())} to {int(given.max())}.")
    return torch.from_numpy(given.astype(np.int64))


def _pillow() -> ModuleType:
    return require("PIL.Image", "Reading image files")


def to_rgb(image: "Image.Image") -> "Image.Image":
    """Convert a Pillow image to 8-bit RGB, as `FileSet` describes."""
    if image.mode.startswith("I"):
        deep = np.asarray(image).clip(0, 2**16 - 1)
        image = _pillow().fromarray((deep >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def decode_image(
    path: Path | str, content: BinaryIO | None = None, *, size: Size = None, max_pixels: int | None = None
) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image file as `FileSet` decodes it, (H, W, 3).

    Args:
        path: The file, or a name for `content`.
        content: What to read in place of the file, such as an upload; None reads the file.
        size: As in `FileSet`.
        max_pixels: As in `FileSet`.

    Examples:
        >>> from io import BytesIO
        >>> decode_image("red.ppm", BytesIO(b"P6 2 1 255 " + bytes([255, 0, 0] * 2))).shape
        (1, 2, 3)
    """
    with open_image(path, content, max_pixels=max_pixels) as opened:
        return np.array(resize_image(path, to_rgb(opened), size, max_pixels))


def resize_image(path: Path | str, image: "Image.Image", size: Size, max_pixels: int | None = None) -> "Image.Image":
    """Resize a Pillow image as `FileSet` does; the name is for errors."""
    size = ResizeExact(*size) if isinstance(size, tuple) else size
    if size is None:
        return image
    if isinstance(size, ResizeExact):
        return _interpolate(image, (size.width, size.height), size.interpolation)
    shorter = min(image.size)
    width, height = (int(size.side * length / shorter) for length in image.size)
    check_pixels(path, height, width, max_pixels)  # a narrow image becomes a long one
    left, top = round((width - size.crop) / 2), round((height - size.crop) / 2)
    resized = _interpolate(image, (width, height), size.interpolation)
    return resized.crop((left, top, left + size.crop, top + size.crop))


def _interpolate(image: "Image.Image", width_height: tuple[int, int], interpolation: str) -> "Image.Image":
    if image.size == width_height:
        return image
    return image.resize(width_height, _pillow().Resampling[interpolation.upper()])


def _format_size(image: npt.NDArray[np.uint8]) -> str:
    return f"{image.shape[0]}×{image.shape[1]}"
