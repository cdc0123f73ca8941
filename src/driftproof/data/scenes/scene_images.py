"""`SceneImages`: the frames of driving scenes as an `ImageSet`."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from driftproof.data.images import ImageSet, check_indices
from driftproof.data.scenes.scenes import Scenes

__all__ = ["SceneImages"]


class SceneImages(ImageSet):
    """The frames of driving scenes as unlabeled images, for `Corrupted` and `cache_to_disk`.

    Args:
        scenes: The scenes.
        workers: Number of decoding threads; None for one per core, at most 8.
    """

    def __init__(self, scenes: Scenes, *, workers: int | None = None) -> None:
        super().__init__(len(scenes), None, name=scenes.name)
        self.scenes = scenes
        self._workers = workers or min(8, os.cpu_count() or 1)

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return the frames at these indices, decoded in parallel."""
        indices = check_indices(indices, len(self)).tolist()
        if not indices:
            return torch.empty(0, 3, *self.scenes.extent, dtype=torch.uint8)
        with ThreadPoolExecutor(min(self._workers, len(indices))) as pool:
            return torch.stack(list(pool.map(self.scenes.read_frame, indices)))
