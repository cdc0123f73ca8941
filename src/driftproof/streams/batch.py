"""Batches of a stream, and the plans they are read from."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from driftproof.data.scenes import VOID
from driftproof.errors import InputError

__all__ = ["BatchPlan", "BatchSlice", "Images", "Stream", "StreamBatch", "read_pixels"]

_UNKNOWN = -1

ToDevice = Callable[[Tensor], Tensor]
"""Moves a tensor to the target device."""


class Images(Protocol):
    """Image set as a stream needs it."""

    @property
    def name(self) -> str:
        """Name of the set, for messages."""

    @property
    def labels(self) -> Tensor:
        """Classes, (N,) int64."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return the images at these indices, (n, 3, H, W) uint8."""


@dataclass(frozen=True, eq=False)
class StreamBatch:
    """Images with their labels and where they come from.

    Methods see only `.images`. The other fields are for scoring and for analyses with an oracle.

    Attributes:
        images: (N, 3, H, W) float32 in [0, 1].
        labels: (N,) int64, or (N, H, W) for label maps. −1 means unknown; in label maps, `VOID` means unlabeled.
        domain: Name of the domain.
        round: Round, counted from 1.
        known: Boolean, same shape as `labels`; False for unknown and for unlabeled entries.
    """

    images: Tensor
    labels: Tensor
    domain: str
    round: int
    known: Tensor

    @property
    def num_known(self) -> int:
        """Number of known images or known pixels."""
        return int(self.known.sum())

    @property
    def labeled(self) -> Tensor | None:
        """Mask of labeled pixels, known or unknown; None if each image has one label."""
        return None if self.labels.ndim == 1 else self.labels != VOID


@dataclass(frozen=True, eq=False)
class BatchSlice:
    """Images of one set that go into a batch, in order.

    Attributes:
        images: The set.
        indices: Indices into the set.
        known: Whether the model was trained on their classes.
    """

    images: Images
    indices: Tensor
    known: bool = True

    @property
    def labels(self) -> Tensor:
        """Classes of these images; −1 if they are unknown."""
        return self.images.labels[self.indices].long() if self.known else torch.full_like(self.indices, _UNKNOWN)

    def read(self, size: tuple[int, int], to_device: ToDevice) -> tuple[Tensor, Tensor, Tensor]:
        """Read pixels (uint8), labels and the mask of known entries, and move them to the device.

        Args:
            size: Required height and width of every image.
            to_device: Moves a tensor to the target device.
        """
        known = torch.full_like(self.indices, self.known, dtype=torch.bool)
        pixels = read_pixels(self.images, self.indices, size=size)
        return to_device(pixels), to_device(self.labels), to_device(known)


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Which images a batch holds; nothing is read yet.

    Attributes:
        slices: Where the images come from, in the order of the batch.
        domain: Name of the domain.
        round: Round, counted from 1.
        size: Height and width of every image.
    """

    slices: tuple[BatchSlice, ...]
    domain: str
    round: int
    size: tuple[int, int]

    def read(self, to_device: ToDevice = lambda tensor: tensor) -> StreamBatch:
        """Read the images.

        Args:
            to_device: Moves a tensor to the target device. Pixels are moved as uint8 and converted to float there.
        """
        tensors = [part.read(self.size, to_device) for part in self.slices]
        pixels, labels, known = (torch.cat(parts) for parts in zip(*tensors, strict=True))
        return StreamBatch(pixels.float().div_(255), labels, self.domain, self.round, known)


class Stream(Protocol):
    """Batches that are planned before they are read."""

    def __len__(self) -> int: ...

    def plans(self) -> Iterator[BatchPlan]:
        """Yield the plan of every remaining batch."""


def read_pixels(images: Images, indices: Tensor, *, size: tuple[int, int] | None = None) -> Tensor:
    """Read images of a set and check that they are uint8 of shape (n, 3, H, W)."""
    pixels = images.batch(indices)
    height, width = size or pixels.shape[-2:]
    if pixels.dtype != torch.uint8 or pixels.shape != (len(indices), 3, height, width):
        expected = f"({len(indices)}, 3, {height}, {width})" if size else f"({len(indices)}, 3, H, W)"
        raise InputError(
            f"Expected {images.name} to give uint8 images of shape {expected}, "
            f"but got {pixels.dtype} of shape {tuple(pixels.shape)}."
        )
    return pixels
