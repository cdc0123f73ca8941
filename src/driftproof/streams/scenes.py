"""Driving scenes as domains: frames with a label for every pixel."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from driftproof.data import ImageSet
from driftproof.data.scenes import UNKNOWN, VOID, SceneImages, Scenes
from driftproof.errors import InputError
from driftproof.streams.batch import BatchSlice, ToDevice, read_pixels
from driftproof.streams.domains import Domain

__all__ = ["SceneDomain", "SceneSlice", "make_scene_domain"]


@dataclass(frozen=True, eq=False)
class SceneSlice(BatchSlice):
    """Frames of one set of scenes that go into a batch, in order.

    Attributes:
        scenes: Scenes with the label maps of the frames.
    """

    scenes: Scenes = field(kw_only=True)

    def read(self, size: tuple[int, int], to_device: ToDevice) -> tuple[Tensor, Tensor, Tensor]:
        """Read frames (uint8), label maps and the mask of known pixels; unknown and void pixels are not known."""
        indices = self.indices.tolist()
        with ThreadPoolExecutor(len(indices)) as pool:
            label_maps = pool.map(lambda index: self._read_labels(index, size), indices)
            pixels = to_device(read_pixels(self.images, self.indices, size=size))
            maps = to_device(torch.stack(list(label_maps))).long()
        return pixels, maps.masked_fill(maps == UNKNOWN, -1), maps < UNKNOWN

    def _read_labels(self, index: int, size: tuple[int, int]) -> Tensor:
        labels = self.scenes.read_labels(index)
        if labels is None:
            return torch.full(size, VOID, dtype=torch.uint8)
        if labels.shape != size:
            raise InputError(
                f"Expected label maps of the frames' size, {size}, but number {index} of {self.scenes.name} is "
                f"{tuple(labels.shape)}. Read frames and labels at one size."
            )
        return labels


@dataclass(frozen=True, eq=False)
class SceneDomain(Domain):
    """Scenes under one shift, such as one city or one kind of weather.

    Frames and label maps are read batch by batch and not kept in memory. Scenes without labels are streamed with every
    pixel void. Domains of one stream may have frames of different sizes.

    Attributes:
        name: For example `cityscapes`, or `fog`.
        images: The frames, original or corrupted.
        scenes: Scenes with their label maps.
    """

    scenes: Scenes = field(kw_only=True)

    mixed_sizes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.images) != len(self.scenes):
            raise InputError(
                f"Expected a label map for each of the {len(self.images)} frames of domain {self.name}, "
                f"but {self.scenes.name} has {len(self.scenes)}."
            )

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width of the frames."""
        return self.scenes.extent

    def slice(self, indices: Tensor) -> SceneSlice:
        """Return the frames at these indices, with their label maps, as part of a batch."""
        return SceneSlice(self.images, indices, scenes=self.scenes)


def make_scene_domain(name: str, scenes: Scenes, images: ImageSet | None = None) -> SceneDomain:
    """Make a domain of scenes.

    Args:
        name: Name of the domain.
        scenes: The scenes.
        images: Corrupted frames in the same order, such as `Corrupted(SceneImages(scenes), "fog")`; None for the
            original frames.
    """
    return SceneDomain(name, SceneImages(scenes) if images is None else images, scenes=scenes)
