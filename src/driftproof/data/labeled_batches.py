"""Batches of labeled images, for methods that are prepared on source data."""

from collections.abc import Iterator

import torch
from torch import Tensor

from driftproof.data.images import ImageSet

__all__ = ["LabeledBatches"]


class LabeledBatches:
    """Batches of labeled images in a random order, the same at every pass.

    Args:
        images: The images.
        device: Device of the batches.
        batch_size: Images per batch.
        seed: Seed of the order.

    Examples:
        >>> from driftproof.data import ArraySet
        >>> images = ArraySet(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), [0, 1, 0, 1, 0])
        >>> [len(labels) for _, labels in LabeledBatches(images, batch_size=2)]
        [2, 2, 1]
    """

    def __init__(self, images: ImageSet, *, device: str = "cpu", batch_size: int = 200, seed: int = 0) -> None:
        self.images = images
        self._device = device
        indices = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        self._indices = torch.split(indices, batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in self._indices:
            pixels = self.images.batch(indices).to(self._device)
            yield pixels.float() / 255, self.images.labels[indices].to(self._device)
