"""Keeps single images out of a batch that would spoil it for the others."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from driftproof.components import Component
from driftproof.distributed import Distributed
from driftproof.network import Network

__all__ = ["Quarantine", "Scales", "mask_like", "replace_bad"]

_FACTOR = 10.0
_MOMENTUM = 0.1
_CROWD = 8


class Scales(NamedTuple):
    """How large the images of a batch are.

    Attributes:
        largest: The largest absolute value of each image, (N,).
        median: The median of those that are finite and not zero; infinite if there are none.
    """

    largest: Tensor
    median: Tensor


class Quarantine(Component):
    """Replaces images that are not finite, or far outside what the stream has shown, by another of the batch.

    An image is far outside if its largest absolute value is more than ten times the usual one, the moving median over
    the stream. In a batch of eight or more, the majority is right: if most images are outside, the stream has changed.
    A replaced image gets no answer and is not learned from; statistics and memory see the good image twice.
    A batch without a good image becomes NaN, so the step is undone.

    Attributes:
        scale: The usual largest absolute value of an image; zero before the first batch.
    """

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.zeros(()))

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget the stream."""
        self.scale = torch.zeros_like(self.scale)

    def judge(self, images: Tensor) -> tuple[Tensor, Scales]:
        """Return a mask of the good images, (N,), and how large they are."""
        largest = torch.linalg.vector_norm(images.detach().flatten(1), torch.inf, dim=1).to(self.scale.dtype)
        finite = largest < torch.inf
        median = _median(largest)
        usual = torch.where(self.scale > 0, self.scale, median)
        good = finite & (largest <= _FACTOR * usual)
        if len(images) >= _CROWD:
            good = torch.where(2 * good.sum() < finite.sum(), finite, good)
        return good, Scales(largest, median)

    def update(self, scales: Scales, distributed: Distributed) -> None:
        """Follow the scale of the stream over all ranks."""
        largest, median = scales
        if distributed.size > 1:
            median = distributed.map_global_batch(
                largest, lambda rows: _median(*distributed.sum(rows)).expand_as(rows)
            )[0]
        usual = torch.where(self.scale > 0, self.scale, median)
        # Limited, so that one image cannot move it far; a lasting change moves it within some batches.
        moved = torch.lerp(usual, torch.minimum(median, _FACTOR * usual), _MOMENTUM)
        self.scale = torch.where(median < torch.inf, moved, self.scale)


def replace_bad(images: Tensor, good: Tensor) -> Tensor:
    """Return the batch with its first good image in the place of the bad ones; all NaN if none is good."""
    stand_in = images.index_select(0, good.to(torch.int64).argmax().reshape(1)).where(good.any(), torch.nan)
    return images.where(mask_like(good, images), stand_in)


def mask_like(mask: Tensor, like: Tensor) -> Tensor:
    """Reshape a mask of images, (N,), to broadcast against a tensor of N rows."""
    return mask.view(-1, *[1] * (like.ndim - 1))


def _median(values: Tensor) -> Tensor:
    """The lower median of the finite values above zero, without a branch; infinite if there are none."""
    valid = (values > 0) & (values < torch.inf)  # a black image says nothing about the scale
    ordered = torch.where(valid, values, torch.inf).sort().values
    return ordered.gather(0, ((valid.sum() - 1).clamp(min=0) // 2).reshape(1))[0]
