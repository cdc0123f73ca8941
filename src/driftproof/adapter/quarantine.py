"""Keeps single images out of a batch that would spoil it for the others."""

import torch
from torch import Tensor, nn

from driftproof.components import Component
from driftproof.network import Network

__all__ = ["Quarantine"]

_FACTOR = 10.0
_MOMENTUM = 0.1
_CROWD = 8


class Quarantine(Component):
    """Replaces images that are not finite, or far outside what the stream has shown, by another of the batch.

    An image is far outside if its largest absolute value is more than ten times the usual one, the moving median over
    the stream. In a batch of eight or more, the majority is right: if most images are outside, the stream has changed.
    A replaced image gets no answer and is not learned from; statistics, loss and memory see the good image twice.

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

    def replace_bad(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch without its bad images, and a mask of the good ones, (N,)."""
        largest = images.detach().flatten(1).abs().amax(dim=1).to(self.scale.dtype)
        finite = largest.isfinite()
        median = _median(largest, finite)
        usual = torch.where(self.scale > 0, self.scale, median)
        good = finite & ((largest <= _FACTOR * usual) | (usual == 0))
        if len(images) >= _CROWD:
            good = torch.where(2 * good.sum() < finite.sum(), finite, good)
        # Limited, so that one image cannot move it far; a lasting change moves it within some batches.
        now = torch.where(usual > 0, torch.minimum(median, _FACTOR * usual), median)
        self.scale = torch.where(finite.any(), torch.lerp(usual, now, _MOMENTUM), self.scale)
        stand_in = images.index_select(0, good.to(torch.int64).argmax().reshape(1))
        return torch.where(good.view(-1, *[1] * (images.ndim - 1)), images, stand_in), good


def _median(values: Tensor, valid: Tensor) -> Tensor:
    """The lower median of the valid values, without a branch; zero if there are none."""
    ordered = torch.where(valid, values, torch.inf).sort().values
    median = ordered.gather(0, ((valid.sum() - 1).clamp(min=0) // 2).reshape(1))[0]
    return torch.where(valid.any(), median, torch.zeros_like(median))
