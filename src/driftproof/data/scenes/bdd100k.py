"""BDD100K."""

from pathlib import Path

from driftproof.data.folder import image_files, locate
from driftproof.data.scenes.cityscapes import TRAIN_IDS
from driftproof.data.scenes.classes import CITYSCAPES
from driftproof.data.scenes.layout import dataset_root, labels_with_stem, pair_with_labels, parse_splits
from driftproof.data.scenes.scenes import Scene, Scenes
from driftproof.data.scenes.sizes import FitHeight

__all__ = ["bdd100k"]


def bdd100k(root: Path, *, split: str = "val", size: FitHeight | None = None) -> Scenes:
    """Read BDD100K from `images/10k` and `labels/sem_seg/masks`.

    The folders `seg/images` and `seg/labels` of older archives are read as well. The masks use 255 for everything
    outside the nineteen classes, labeled or not; all of it is `UNKNOWN`.

    Args:
        root: Folder that holds them, directly or in `bdd100k`.
        split: train or val, or both joined by a plus sign.
        size: Size of the frames; None keeps the stored 720×1280.
    """
    root, scenes = dataset_root(root, "bdd100k"), list[Scene]()
    for part in parse_splits(split, ("train", "val")):
        frames = locate(root, f"images/10k/{part}", f"seg/images/{part}", dataset="bdd100k")
        masks = locate(root, f"labels/sem_seg/masks/{part}", f"seg/labels/{part}", dataset="bdd100k")
        ending = "_train_id.png" if masks.parts[-3] == "seg" else ".png"
        scenes += pair_with_labels(image_files(frames), labels_with_stem(masks, ending))
    return Scenes(f"bdd100k/{split}", tuple(scenes), CITYSCAPES, TRAIN_IDS, size)
