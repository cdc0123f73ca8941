"""The one contract of every data set: images by index, as bytes."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from driftproof.errors import ConfigurationError, InputError
from driftproof.optional import require

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["ArraySet", "FileSet", "ImageSet", "ResizeShorterSide", "Size", "Subset", "to_rgb"]


@dataclass(frozen=True)
class ResizeShorterSide:
    """Scale the shorter side to `side` pixels, then take the centre square of `crop`, as is usual on ImageNet."""

    side: int = 256
    crop: int = 224

    def __post_init__(self) -> None:
        if not 1 <= self.crop <= self.side:
            raise ConfigurationError(f"Expected 1 <= `crop` <= `side`, but got crop {self.crop} and side {self.side}.")


Size = tuple[int, int] | ResizeShorterSide | None


class ImageSet(ABC):
    """Images by index, as bytes; every data set is one.

    Args:
        count: Number of images.
        labels: One integer per image, −1 where unlabelled; None when none is labelled.
        classes: Names of the classes in the order of the labels; empty when unknown.
        name: What the set is called in results, such as "cifar10-c/gaussian_noise/5".

    Attributes:
        name: As given.
        classes: As given.
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
        """The images at these indices, in this order: uint8 of shape (n, 3, H, W), a copy."""

    def fingerprint(self) -> str:
        """A short digest by which two sets can be told apart: their labels, and the pixels of some of their images."""
        content = hashlib.sha256(self.labels.numpy().tobytes())
        for place in torch.linspace(0, len(self) - 1, steps=min(len(self), 16)).long():
            content.update(self.batch(place[None]).numpy().tobytes())
        return f"{len(self)} images, {content.hexdigest()[:12]}"


class ArraySet(ImageSet):
    """Images in one uint8 array, which may be larger than memory if it is memory-mapped.

    Args:
        images: (N, H, W, 3) or (N, 3, H, W), of numpy or torch; the former where both fit.
        labels: As in `ImageSet`.
        classes: As in `ImageSet`.
        name: As in `ImageSet`.

    Examples:
        >>> grey = ArraySet(np.full((5, 32, 32, 3), 128, dtype=np.uint8), [0, 1, 0, 1, 0])
        >>> grey.batch([4, 0]).shape
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
        """The images at these indices."""
        places = check_indices(indices, len(self))
        if isinstance(self._images, Tensor):
            picked = self._images[places.to(self._images.device)]
        else:
            picked = torch.from_numpy(np.ascontiguousarray(self._images[places.numpy()]))
        return picked.permute(0, 3, 1, 2).contiguous() if self._channels_last else picked


class FileSet(ImageSet):
    """Image files, decoded when asked for.

    Anything Pillow reads becomes 8-bit RGB: grey is repeated, palettes are looked up, transparency is dropped, of 16
    bits the upper eight are kept. Orientation tags are not obeyed. Scaling is bilinear and anti-aliased.

    Args:
        paths: The files.
        labels: As in `ImageSet`.
        size: (height, width) to scale to exactly that, ignoring the aspect; a `ResizeShorterSide`; None for as stored, in
            which case the images of one batch have to agree.
        classes: As in `ImageSet`.
        name: As in `ImageSet`.
        workers: Threads that decode; None for one per core, at most 8.
        root: The folder below which they lie, where its sub-folders mean something; None if that is not known.
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
    ) -> None:
        super().__init__(len(paths), labels, classes=classes, name=name)
        if isinstance(size, tuple) and (len(size) != 2 or min(size) < 1):
            raise ConfigurationError(f"Expected `size` to be (height, width), both at least 1, but got {size}.")
        if workers is not None and workers < 1:
            raise ConfigurationError(f"Expected `workers` to be at least 1, but got {workers}.")
        self.paths = tuple(paths)
        self.root = root
        self.size = size
        self._workers = workers or min(8, os.cpu_count() or 1)

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """The images at these indices, decoded in parallel."""
        places = check_indices(indices, len(self)).tolist()
        if not places:
            return self.batch([0])[:0]
        paths = [self.paths[place] for place in places]
        with ThreadPoolExecutor(self._workers) as pool:
            images = list(pool.map(self._decode, paths))
        for path, image in zip(paths, images, strict=True):
            if image.shape != images[0].shape:
                raise InputError(
                    f"Expected the images of a batch to be of one size, but {paths[0]} is {_format_size(images[0])} and "
                    f"{path} is {_format_size(image)}. Pass `size` to scale them."
                )
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()

    def _decode(self, path: Path) -> npt.NDArray[np.uint8]:
        pillow = _pillow()
        try:
            with pillow.open(path) as opened:
                return np.array(_resize(to_rgb(opened), self.size))
        # Pillow's readers let almost any exception through when a file is damaged.
        except Exception as error:
            raise InputError(f"Expected {path} to be an image, but it cannot be read: {error}.") from error


class Subset(ImageSet):
    """Some images of another set, in any order, repeats allowed.

    Args:
        images: The other set.
        indices: Which of its images.
        name: What to call it; None for the other set's name.

    Examples:
        >>> whole = ArraySet(np.zeros((5, 8, 8, 3), dtype=np.uint8), [0, 1, 2, 3, 4])
        >>> Subset(whole, [3, 3, 0]).labels
        tensor([3, 3, 0])
    """

    def __init__(self, images: ImageSet, indices: Sequence[int] | Tensor, *, name: str | None = None) -> None:
        places = check_indices(indices, len(images))
        super().__init__(len(places), images.labels[places], classes=images.classes, name=name or images.name)
        self._images = images
        self._places = places

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """The images at these indices of the subset."""
        return self._images.batch(self._places[check_indices(indices, len(self))])


def check_indices(indices: Sequence[int] | Tensor, count: int) -> Tensor:
    """Indices as one row of int64, refused unless every one is in 0..count − 1."""
    places = indices if isinstance(indices, Tensor) else torch.tensor(list(indices))
    if places.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    if places.ndim != 1 or places.dtype == torch.bool or places.is_floating_point() or places.is_complex():
        raise InputError(
            f"Expected `indices` to be one row of integers, but got {places.dtype} of shape {tuple(places.shape)}."
        )
    if places.min() < 0 or places.max() >= count:
        raise InputError(f"Expected indices in 0..{count - 1}, but got {int(places.min())} to {int(places.max())}.")
    return places.to("cpu", torch.int64)


def _validate_labels(labels: npt.ArrayLike | Tensor | None, count: int, classes: int, name: str) -> Tensor:
    if labels is None:
        return torch.full((count,), -1)
    given = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if given.shape != (count,) or given.dtype.kind not in "iu":
        raise InputError(
            f"Expected one integer label for each of the {count} images of {name}, "
            f"but got {given.dtype} of shape {given.shape}."
        )
    if given.min() < -1 or (classes and given.max() >= classes):
        allowed = f"in -1..{classes - 1}" if classes else "of at least -1"
        raise InputError(f"Expected labels of {name} {allowed}, but got {int(given.min())} to {int(given.max())}.")
    return torch.from_numpy(given.astype(np.int64))


def _pillow() -> ModuleType:
    return require("PIL.Image", "Reading image files")


def to_rgb(image: "Image.Image") -> "Image.Image":
    """Any image that Pillow has opened as 8-bit RGB, by the rules of `FileSet`."""
    if image.mode.startswith("I"):
        deep = np.asarray(image).clip(0, 2**16 - 1)
        image = _pillow().fromarray((deep >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _resize(image: "Image.Image", size: Size) -> "Image.Image":
    if size is None:
        return image
    if isinstance(size, tuple):
        return _resize_exact(image, (size[1], size[0]))
    shorter = min(image.size)
    width, height = (int(size.side * length / shorter) for length in image.size)
    left, top = round((width - size.crop) / 2), round((height - size.crop) / 2)
    return _resize_exact(image, (width, height)).crop((left, top, left + size.crop, top + size.crop))


def _resize_exact(image: "Image.Image", width_height: tuple[int, int]) -> "Image.Image":
    return image if image.size == width_height else image.resize(width_height, _pillow().Resampling.BILINEAR)


def _format_size(image: npt.NDArray[np.uint8]) -> str:
    return f"{image.shape[0]}×{image.shape[1]}"
