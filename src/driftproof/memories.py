"""What is learned from: the batch itself, or a memory of past images with fixed capacity."""

import torch
from torch import Tensor, nn

from driftproof.components import Component, Step
from driftproof.errors import ConfigurationError, InputError
from driftproof.network import Network

__all__ = ["LatestImages", "Memory"]


class Memory(Component):
    """Holds the images that the step learns from, in place of the batch.

    Its images form a batch of fixed size, so every step has the same shapes. A bad batch is not remembered: what
    `update` changed is undone with the rest of the step.

    Examples:
        The smallest new memory: the batch itself, which is the same as none.

        >>> class ThisBatch(Memory):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("batch", None)
        ...     def update(self, step):
        ...         self.batch = step.images
        ...     def images(self):
        ...         return self.batch
    """

    def update(self, step: Step) -> None:
        """Take in a batch: replace buffers, as in `Component`."""
        raise NotImplementedError

    def images(self) -> Tensor:
        """The images to learn from, always of the same shape."""
        raise NotImplementedError

    def weights(self, step: Step) -> Tensor | None:
        """A weight ≥ 0 for each remembered sample, multiplied with the selection's; None is one for all."""
        return None


class LatestImages(Memory):
    """The latest images of the stream.

    Until `capacity` images have come, the first ones are repeated with weight zero.

    Args:
        capacity: How many images to hold.
    """

    bank: Tensor | None
    count: Tensor | None

    def __init__(self, capacity: int = 64) -> None:
        super().__init__()
        if capacity < 1:
            raise ConfigurationError(f"Expected `capacity` to be at least 1, but got {capacity}.")
        self.capacity = capacity
        self.register_buffer("bank", None)
        self.register_buffer("count", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget all images."""
        self.bank = self.count = None

    def update(self, step: Step) -> None:
        """Append the batch and drop the oldest images."""
        images = step.images.detach()
        if self.bank is None or self.count is None:
            repeats = -(-self.capacity // len(images))
            bank = images.repeat(repeats, *([1] * (images.ndim - 1)))[: self.capacity]
            self.count = torch.zeros((), dtype=torch.int64, device=images.device)
        elif self.bank.shape[1:] != images.shape[1:]:
            raise InputError(
                f"Expected images of shape {tuple(self.bank.shape[1:])}, as in the memory, but got "
                f"{tuple(images.shape[1:])}. A memory holds images of one size."
            )
        else:
            bank = self.bank
        self.bank = torch.cat([bank, images])[-self.capacity :]
        self.count = (self.count + len(images)).clamp(max=self.capacity)

    def images(self) -> Tensor:
        """The latest images, oldest first."""
        assert self.bank is not None  # update() comes first
        return self.bank

    def weights(self, step: Step) -> Tensor:
        """One for images that came, zero for those that only fill the memory."""
        assert self.count is not None  # update() comes first
        came = torch.arange(self.capacity, device=self.count.device) >= self.capacity - self.count
        return came.view(-1, *([1] * (step.weights.ndim - 1))).to(step.weights.dtype).expand_as(step.weights)
