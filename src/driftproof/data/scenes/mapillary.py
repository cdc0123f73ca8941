"""Mapillary Vistas."""

from pathlib import Path

from driftproof.data.folder import image_files, locate
from driftproof.data.scenes.classes import CITYSCAPES, UNKNOWN, VOID
from driftproof.data.scenes.labels import IdLabels
from driftproof.data.scenes.layout import dataset_root, labels_with_stem, pair_with_labels, parse_splits
from driftproof.data.scenes.scenes import Scene, Scenes
from driftproof.data.scenes.sizes import FitHeight

__all__ = ["mapillary"]

_FOLDERS = {"train": "training", "val": "validation"}

_TRAIN_LABELS: dict[int, tuple[int, ...]] = {
    0: (13, 24, 41),
    1: (2, 15),
    2: (17,),
    3: (6,),
    4: (3,),
    5: (45, 47),
    6: (48,),
    7: (50,),
    8: (30,),
    9: (29,),
    10: (27,),
    11: (19,),
    12: (20, 21, 22),
    13: (55,),
    14: (61,),
    15: (54,),
    16: (58,),
    17: (57,),
    18: (52,),
}
_VOID_LABELS = (63, 64, 65)  # car mount, ego vehicle, unlabeled

_MEANINGS = {
    **dict.fromkeys(range(66), UNKNOWN),
    **dict.fromkeys(_VOID_LABELS, VOID),
    **{number: index for index, numbers in _TRAIN_LABELS.items() for number in numbers},
}
_LABELS, _INSTANCES = IdLabels(_MEANINGS), IdLabels(_MEANINGS, divisor=256)
_LABEL_FOLDERS = {"labels": _LABELS, "v1.2/labels": _LABELS, "instances": _INSTANCES, "v1.2/instances": _INSTANCES}


def mapillary(root: Path, *, split: str = "val", size: FitHeight | None = None) -> Scenes:
    """Read Mapillary Vistas v1.2, which has 66 labels, from `training` and `validation`.

    Label images are read from `labels`, or from the 16-bit `instances` if there are none. Archives of version 2.0 hold
    both in a folder `v1.2`.

    Args:
        root: Folder that holds them, directly or in `mapillary`.
        split: train or val, or both joined by a plus sign.
        size: Size of the frames. Stored sizes differ, so a stream needs one, such as `FitHeight(800, width=1422)`.
    """
    root, scenes = dataset_root(root, "mapillary"), list[Scene]()
    parts = [locate(root, _FOLDERS[part], dataset="mapillary") for part in parse_splits(split, tuple(_FOLDERS))]
    complete = [below for below in _LABEL_FOLDERS if all((part / below).is_dir() for part in parts)]
    below = complete[0] if complete else "labels"
    for part in parts:
        scenes += pair_with_labels(image_files(part / "images"), labels_with_stem(part / below))
    return Scenes(f"mapillary/{split}", tuple(scenes), CITYSCAPES, _LABEL_FOLDERS[below], size)
