"""Driving scenes as a stream: frames with a label for every pixel, a few at a time."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from driftproof.data import ImageSet
from driftproof.data.scenes import UNKNOWN, VOID, Pictures, Scenes
from driftproof.errors import InputError
from driftproof.streams.batch import Move, Part, read_pixels
from driftproof.streams.domains import Domain

__all__ = ["SceneDomain", "ScenePart", "scene_domain"]


@dataclass(frozen=True, eq=False)
class ScenePart(Part):
    """Some frames of one set of scenes, in order.

    Attributes:
        scenes: Whose label maps go with the frames.
    """

    scenes: Scenes = field(kw_only=True)

    def read(self, size: tuple[int, int], move: Move) -> tuple[Tensor, Tensor, Tensor]:
        """Frames as bytes and label maps; pixels of unknown objects are not known, void ones neither."""
        places = self.indices.tolist()
        with ThreadPoolExecutor(len(places)) as pool:
            reading = pool.map(lambda place: self._map(place, size), places)
            pixels = move(read_pixels(self.images, self.indices, size=size))
            maps = move(torch.stack(list(reading))).long()
        return pixels, maps.masked_fill(maps == UNKNOWN, -1), maps < UNKNOWN

    def _map(self, index: int, size: tuple[int, int]) -> Tensor:
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
    """Scenes that share an appearance, such as one city, or one kind of weather.

    Frames and label maps are read when their batch is planned to come, so none of them stay in memory. Scenes without
    labels are streamed with every pixel void. Domains of one stream may have frames of different sizes.

    Attributes:
        name: For example `cityscapes`, or `fog`.
        images: The frames, as they are or changed.
        scenes: Whose label maps go with them.
    """

    scenes: Scenes = field(kw_only=True)

    varied = True

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

    def part(self, indices: Tensor) -> ScenePart:
        """Some of the frames, with their label maps."""
        return ScenePart(self.images, indices, scenes=self.scenes)


def scene_domain(name: str, scenes: Scenes, images: ImageSet | None = None) -> SceneDomain:
    """A domain of scenes.

    Args:
        name: What to call it.
        scenes: The scenes.
        images: Their frames, changed, in the same order, such as `Corrupted(Pictures(scenes), "fog")`; None for as they
            are.
    """
    return SceneDomain(name, Pictures(scenes) if images is None else images, scenes=scenes)
