"""The latest images of the stream."""

import torch
from torch import Tensor, nn

from driftproof.components import Step
from driftproof.errors import ConfigurationError, InputError
from driftproof.memories.base import Memory, expand_to_samples
from driftproof.network import Network

__all__ = ["LatestImages"]


class LatestImages(Memory):
    """The latest images of the stream; a subclass can `choose` others.

    Until `capacity` images have come, the first ones are repeated with weight zero.

    Args:
        capacity: How many images to hold.
    """

    bank: Tensor | None
    filled: Tensor | None

    def __init__(self, capacity: int = 64) -> None:
        super().__init__()
        if capacity < 1:
            raise ConfigurationError(f"Expected `capacity` to be at least 1, but got {capacity}.")
        self.capacity = capacity
        self.register_buffer("bank", None)
        self.register_buffer("filled", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget all images."""
        self.bank = self.filled = None

    def choose(self, images: Tensor, step: Step) -> Tensor:
        """The indices of the `capacity` images to keep, among the remembered ones and the batch, oldest first."""
        return torch.arange(len(images) - self.capacity, len(images), device=images.device)

    def update(self, step: Step) -> None:
        """Take in the batch and keep the chosen images."""
        images = step.images.detach()
        if self.bank is None or self.filled is None:
            bank = images[torch.arange(self.capacity, device=images.device) % len(images)]
            filled = torch.zeros(self.capacity, dtype=step.weights.dtype, device=images.device)
        elif self.bank.shape[1:] != images.shape[1:]:
            raise InputError(
                f"Expected images of shape {tuple(self.bank.shape[1:])}, as in the memory, but got "
                f"{tuple(images.shape[1:])}. A memory holds images of one size."
            )
        else:
            bank, filled = self.bank, self.filled
        candidates = torch.cat([bank, images])
        kept = self.choose(candidates, step)
        self.bank, self.filled = candidates[kept], torch.cat([filled, filled.new_ones(len(images))])[kept]

    def images(self) -> Tensor:
        """The remembered images, oldest first."""
        assert self.bank is not None  # update() comes first
        return self.bank

    def weights(self, step: Step) -> Tensor:
        """One for images of the stream, zero for those that only fill the memory."""
        assert self.filled is not None  # update() comes first
        return expand_to_samples(self.filled, step)
