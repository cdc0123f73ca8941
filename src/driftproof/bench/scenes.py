"""Driving scenes: streamed domains and the training sets of their networks."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from driftproof.data.scenes import (
    UNKNOWN,
    VOID,
    FitHeight,
    SceneImages,
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
"""The domain of uncorrupted scenes."""


def _synthia(root: Path, *, split: str, size: FitHeight) -> Scenes:
    listing = root / f"synthia_{split}.txt"
    return synthia(root, listing=listing if listing.exists() else None, size=size)


_READERS: dict[str, Callable[..., Scenes]] = {
    "cityscapes": cityscapes,
    "bdd100k": bdd100k,
    "mapillary": mapillary,
    "gtav": gtav,
    "synthia": _synthia,
}

_SIZES = {"mapillary": FitHeight(800, width=1422), "gtav": FitHeight(800, width=1455)}
"""Fixed sizes of datasets whose frames differ in shape and have to be cropped or padded."""

PADDED = frozenset(_SIZES)
"""Datasets with padding: the network sees it, but `IgnorePadding` excludes it from the loss, and metrics ignore it."""

_MAX_SOURCE_SCENES = 1600


def camvid_scenes(root: Path, *, split: str, height: int | None = None) -> Scenes:
    """Read a split of CamVid.

    Args:
        root: Folder with the datasets.
        split: `train`, or `val+test`, which its models have not seen.
        height: Height to resize the frames to; None for the stored size.
    """
    return camvid(root, split=split, size=None if height is None else FitHeight(height))


def driving(root: Path, domain: str, *, split: str) -> Scenes:
    """Read a domain of the paper's streams, at a height of 800 pixels.

    Args:
        root: Folder with the datasets.
        domain: Name of the dataset.
        split: `train` or `val`. SYNTHIA has no official splits: all frames, unless `synthia_val.txt` lists some.
    """
    read = _READERS[check_choice("driving domain", domain, _READERS)]
    return read(root, split=split, size=_SIZES.get(domain, FitHeight(800)))


def driving_source(root: Path, *, name: str) -> Scenes:
    """Read the training scenes of a source domain."""
    return driving(root, name, split="train")


class SourceScenes:
    """Batches of labeled source scenes, the same at every pass; unknown pixels are labeled void.

    Of a large dataset, only a fixed random subset is used.

    Args:
        scenes: The dataset.
        device: Device of the batches.
        batch_size: Scenes per batch.
        limit: Maximum number of scenes per pass.
    """

    def __init__(
        self, scenes: Scenes, *, device: str = "cpu", batch_size: int = 4, limit: int = _MAX_SOURCE_SCENES
    ) -> None:
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
