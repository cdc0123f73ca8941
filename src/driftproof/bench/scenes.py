"""The driving scenes that can be streamed, and those that networks were trained on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from driftproof.data.scenes import (
    UNKNOWN,
    VOID,
    Height,
    Pictures,
    Scenes,
    bdd100k,
    camvid,
    cityscapes,
    gtav,
    mapillary,
    synthia,
)
from driftproof.errors import InputError
from driftproof.validation import check_choice

__all__ = ["CLEAN", "PADDED", "SourceScenes", "camvid_scenes", "driving", "driving_source"]

CLEAN = "clean"
"""The domain in which scenes are as they were recorded."""


def _synthia(root: Path, *, split: str, size: Height) -> Scenes:
    listing = root / f"synthia_{split}.txt"
    return synthia(root, listing=listing if listing.exists() else None, size=size)


_READERS: dict[str, Callable[..., Scenes]] = {
    "cityscapes": cityscapes,
    "bdd100k": bdd100k,
    "mapillary": mapillary,
    "gtav": gtav,
    "synthia": _synthia,
}

_SIZES = {"mapillary": Height(800, width=1422), "gtav": Height(800, width=1455)}
"""Where frames differ in shape, so that they have to be cut or padded; elsewhere the width follows."""

PADDED = frozenset(_SIZES)
"""Sets with black bars: the network sees them, but they are neither learned from (`IgnorePadding`) nor scored."""

_SOURCE_SCENES = 1600


def camvid_scenes(root: Path, *, split: str, height: int | None = None) -> Scenes:
    """A part of CamVid.

    Args:
        root: The folder that holds the data sets.
        split: `train` is what its models are trained on, `val+test` what they have not seen.
        height: To scale the frames to; None for as stored.
    """
    return camvid(root, split=split, size=None if height is None else Height(height))


def driving(root: Path, domain: str, *, split: str) -> Scenes:
    """A domain of the paper's streams, at a height of 800 pixels.

    Args:
        root: The folder that holds the data sets.
        domain: Name of the data set.
        split: `train` or `val`. SYNTHIA has no official splits: all of it, unless `synthia_val.txt` lists frames.
    """
    read = _READERS[check_choice("driving domain", domain, _READERS)]
    return read(root, split=split, size=_SIZES.get(domain, Height(800)))


def driving_source(root: Path, *, name: str) -> Scenes:
    """The training scenes of a network's source domain."""
    return driving(root, name, split="train")


class SourceScenes:
    """Batches of labelled source scenes, the same at every pass; pixels of unknown objects are as void ones.

    Of a large set only a fixed random part is passed over.

    Args:
        scenes: The set.
        device: Where the batches are wanted.
        batch_size: Scenes per batch.
        limit: The most scenes of a pass.
    """

    def __init__(
        self, scenes: Scenes, *, device: str = "cpu", batch_size: int = 4, limit: int = _SOURCE_SCENES
    ) -> None:
        self._scenes = scenes
        self._pictures = Pictures(scenes)
        self._device = device
        places = torch.randperm(len(scenes), generator=torch.Generator().manual_seed(0))[:limit]
        self._places = torch.split(places, batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for places in self._places:
            frames = self._pictures.batch(places).to(self._device)
            maps = torch.stack([self._map(place) for place in places.tolist()]).to(self._device).long()
            yield frames.float() / 255, maps.masked_fill(maps == UNKNOWN, VOID)

    def _map(self, place: int) -> Tensor:
        labels = self._scenes.read_labels(place)
        if labels is None:
            raise InputError(f"Expected source scenes with labels, but {self._scenes.name} has none.")
        return labels
