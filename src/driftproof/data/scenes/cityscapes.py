"""Cityscapes."""

from functools import partial
from pathlib import Path

from driftproof.data.folder import image_files, locate
from driftproof.data.scenes.classes import CITYSCAPES, UNKNOWN, VOID
from driftproof.data.scenes.labels import IdLabels
from driftproof.data.scenes.layout import dataset_root, pair_with_labels, parse_splits
from driftproof.data.scenes.scenes import Scenes
from driftproof.data.scenes.sizes import FitHeight

__all__ = ["LABEL_IDS", "TRAIN_IDS", "cityscapes"]

_TRAIN_LABELS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
_VOID_LABELS = range(4)  # unlabeled, ego vehicle, rectification border, out of the region of interest
_LICENSE_PLATE = (34, 255)  # −1, as stored by GTAV and in 8 bits

LABEL_IDS = IdLabels(
    {
        **dict.fromkeys((*range(34), *_LICENSE_PLATE), UNKNOWN),
        **dict.fromkeys(_VOID_LABELS, VOID),
        **{number: index for index, number in enumerate(_TRAIN_LABELS)},
    }
)
"""Label IDs of Cityscapes, which GTAV uses too."""

TRAIN_IDS = IdLabels({**{index: index for index in range(len(CITYSCAPES))}, 255: UNKNOWN})
"""Train IDs of the nineteen classes; 255, which stands for all the rest, is unknown."""


def cityscapes(root: Path, *, split: str = "val", size: FitHeight | None = None) -> Scenes:
    """Read Cityscapes from `leftImg8bit` and `gtFine`.

    The label images `labelIds` distinguish unknown from void. If only `labelTrainIds` exist, which use 255 for both,
    both are unknown.

    Args:
        root: Folder that holds both, directly or in `cityscapes`.
        split: train, val or test, or several joined by a plus sign.
        size: Size of the frames; None keeps the stored 1024×2048.
    """
    pictures = locate(dataset_root(root, "cityscapes"), "leftImg8bit", dataset="cityscapes")
    found = [
        frame
        for part in parse_splits(split, ("train", "val", "test"))
        for frame in image_files(locate(pictures, part, dataset="cityscapes"))
    ]
    original = any(_label_path("labelIds", frame).exists() for frame in found)
    kind, numbers = ("labelIds", LABEL_IDS) if original else ("labelTrainIds", TRAIN_IDS)
    return Scenes(f"cityscapes/{split}", pair_with_labels(found, partial(_label_path, kind)), CITYSCAPES, numbers, size)


def _label_path(kind: str, frame: Path) -> Path:
    *above, _, split, city, name = frame.parts
    return Path(*above, "gtFine", split, city, f"{Path(name).stem.removesuffix('_leftImg8bit')}_gtFine_{kind}.png")
