"""Driving scenes: the domains that can be streamed."""

from collections.abc import Callable
from pathlib import Path

from driftproof.data.scenes import FitHeight, Scenes, bdd100k, camvid, cityscapes, gtav, mapillary, synthia
from driftproof.validation import check_choice

__all__ = ["CLEAN", "PADDED", "camvid_scenes", "driving"]

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


def camvid_scenes(root: Path, *, split: str, height: int | None = None) -> Scenes:
    """Read a split of CamVid: `train`, or `val+test`, which its models have not seen; None keeps the stored height."""
    return camvid(root, split=split, size=None if height is None else FitHeight(height))


def driving(root: Path, domain: str, *, split: str) -> Scenes:
    """Read a domain of the driving streams, at a height of 800 pixels.

    Args:
        root: Folder with the datasets.
        domain: Name of the dataset.
        split: `train` or `val`. SYNTHIA has no official splits: all frames, unless `synthia_val.txt` lists some.
    """
    read = _READERS[check_choice("driving domain", domain, _READERS)]
    return read(root, split=split, size=_SIZES.get(domain, FitHeight(800)))
