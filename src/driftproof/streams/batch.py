"""A batch of a stream: planned first, read when it is wanted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from driftproof.data.scenes import VOID
from driftproof.errors import InputError

__all__ = ["Batch", "Images", "Part", "Plan", "Stream", "read_pixels"]

_UNKNOWN = -1

Move = Callable[[Tensor], Tensor]
"""Takes a tensor where it is wanted."""


class Images(Protocol):
    """A set of images: what a stream needs to know of it."""

    @property
    def name(self) -> str:
        """What the set is called in messages."""

    @property
    def labels(self) -> Tensor:
        """Classes, (N,) int64."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """The images at these places, (n, 3, H, W) uint8."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Images as they arrive, with what only the examiner knows.

    Methods only ever see `.images`. The rest is for scoring, and for analyses that ask what an oracle would have done.

    Attributes:
        images: (N, 3, H, W) float32 in [0, 1].
        labels: (N,) int64, or (N, H, W) for label maps; −1 for what is unknown, in maps `VOID` where nothing is said.
        domain: Name of the domain they come from.
        round: How often the domains have come by, counted from 1.
        known: Of the labels' shape, bool; False for what is unknown, and where nothing is said.
    """

    images: Tensor
    labels: Tensor
    domain: str
    round: int
    known: Tensor

    @property
    def closed(self) -> int:
        """Number of known images, or of known pixels."""
        return int(self.known.sum())

    @property
    def labelled(self) -> Tensor | None:
        """Where a label map says anything, known or not; None for images, all of which count."""
        return None if self.labels.ndim == 1 else self.labels != VOID


@dataclass(frozen=True, eq=False)
class Part:
    """Some images of one set, in order.

    Attributes:
        images: The set.
        indices: Places in the set.
        known: Whether they show what the model was taught.
    """

    images: Images
    indices: Tensor
    known: bool = True

    @property
    def labels(self) -> Tensor:
        """The classes of these images; −1 where they are unknown."""
        return self.images.labels[self.indices].long() if self.known else torch.full_like(self.indices, _UNKNOWN)

    def read(self, size: tuple[int, int], move: Move) -> tuple[Tensor, Tensor, Tensor]:
        """The pixels as bytes, the labels and what is known, moved where they are wanted.

        Args:
            size: Height and width that every image has to have.
            move: Takes a tensor where it is wanted.
        """
        known = torch.full_like(self.indices, self.known, dtype=torch.bool)
        return move(read_pixels(self.images, self.indices, size=size)), move(self.labels), move(known)


@dataclass(frozen=True, eq=False)
class Plan:
    """Which images a batch will hold, before any of them is read.

    Attributes:
        parts: Where the images come from, in the batch's order.
        domain: Name of the domain.
        round: The round, counted from 1.
        size: Height and width of every image.
    """

    parts: tuple[Part, ...]
    domain: str
    round: int
    size: tuple[int, int]

    def read(self, move: Move = lambda tensor: tensor) -> Batch:
        """Read the images.

        Args:
            move: Takes a tensor where it is wanted. Pixels are moved as bytes and become floats there.
        """
        read = [part.read(self.size, move) for part in self.parts]
        pixels, labels, known = (torch.cat(tensors) for tensors in zip(*read, strict=True))
        return Batch(pixels.float().div_(255), labels, self.domain, self.round, known)


class Stream(Protocol):
    """Batches that can be planned before they are read."""

    def __len__(self) -> int: ...

    def plans(self) -> Iterator[Plan]:
        """The batches to come, unread."""


def read_pixels(images: Images, indices: Tensor, *, size: tuple[int, int] | None = None) -> Tensor:
    """Images of a set, refused unless they are bytes of the shape (n, 3, H, W)."""
    pixels = images.batch(indices)
    height, width = size or pixels.shape[-2:]
    if pixels.dtype != torch.uint8 or pixels.shape != (len(indices), 3, height, width):
        wanted = f"({len(indices)}, 3, {height}, {width})" if size else f"({len(indices)}, 3, H, W)"
        raise InputError(
            f"Expected {images.name} to give uint8 images of shape {wanted}, "
            f"but got {pixels.dtype} of shape {tuple(pixels.shape)}."
        )
    return pixels
