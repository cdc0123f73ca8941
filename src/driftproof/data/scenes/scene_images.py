"""The frames of scenes as a set of images, for whatever takes one: corruptions, and the store of what they make."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from driftproof.data.images import ImageSet, check_indices
from driftproof.data.scenes.scenes import Scenes

__all__ = ["SceneImages"]


class SceneImages(ImageSet):
    """The frames of scenes, read when asked for; as whole images they have no class.

    Args:
        scenes: Whose frames.
        workers: Threads that decode; None for one per core, at most 8.
    """

    def __init__(self, scenes: Scenes, *, workers: int | None = None) -> None:
        super().__init__(len(scenes), None, name=scenes.name)
        self.scenes = scenes
        self._workers = workers or min(8, os.cpu_count() or 1)

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """The frames at these indices, decoded in parallel."""
        places = check_indices(indices, len(self)).tolist()
        if not places:
            return torch.empty(0, 3, *self.scenes.extent, dtype=torch.uint8)
        with ThreadPoolExecutor(min(self._workers, len(places))) as pool:
            return torch.stack(list(pool.map(self.scenes.read_frame, places)))
