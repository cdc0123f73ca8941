"""Batches of labeled scenes, for methods that are prepared on source data."""

from collections.abc import Iterator

import torch
from torch import Tensor

from driftproof.data.scenes.classes import UNKNOWN, VOID
from driftproof.data.scenes.scene_images import SceneImages
from driftproof.data.scenes.scenes import Scenes
from driftproof.errors import InputError

__all__ = ["SourceScenes"]

_MAX_SCENES = 1600


class SourceScenes:
    """Batches of labeled source scenes, the same at every pass; unknown pixels are labeled void.

    Of a large dataset, only a fixed random subset is used.

    Args:
        scenes: The dataset.
        device: Device of the batches.
        batch_size: Scenes per batch.
        limit: Maximum number of scenes per pass.
    """

    def __init__(self, scenes: Scenes, *, device: str = "cpu", batch_size: int = 4, limit: int = _MAX_SCENES) -> None:
        self._scenes = scenes
        self._images = SceneImages(scenes)
        self._device = device
        indices = torch.randperm(len(scenes), generator=torch.Generator().manual_seed(0))[:limit]
        self._indices = torch.split(indices, batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in self._indices:
            frames = self._images.batch(indices).to(self._device)
            maps = torch.stack([self._read_map(index) for index in indices.tolist()]).to(self._device).long()
            yield frames.float() / 255, maps.masked_fill(maps == UNKNOWN, VOID)

    def _read_map(self, index: int) -> Tensor:
        labels = self._scenes.read_labels(index)
        if labels is None:
            raise InputError(f"Expected source scenes with labels, but {self._scenes.name} has none.")
        return labels
