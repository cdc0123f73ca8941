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
    """BDD100K from `images/10k` and `labels/sem_seg/masks`, or from `seg/images` and `seg/labels` of older archives.

    Its masks write everything outside the nineteen classes, unlabelled or not, as 255: all of it counts as unknown.

    Args:
        root: The folder that holds them, or that holds one called bdd100k which does.
        split: train or val, or both joined by a plus sign.
        size: What to bring every frame to; stored are 720×1280.
    """
    root, scenes = dataset_root(root, "bdd100k"), list[Scene]()
    for part in parse_splits(split, ("train", "val")):
        frames = locate(root, f"images/10k/{part}", f"seg/images/{part}", source="bdd100k")
        masks = locate(root, f"labels/sem_seg/masks/{part}", f"seg/labels/{part}", source="bdd100k")
        ending = "_train_id.png" if masks.parts[-3] == "seg" else ".png"
        scenes += pair_with_labels(image_files(frames), labels_with_stem(masks, ending))
    return Scenes(f"bdd100k/{split}", tuple(scenes), CITYSCAPES, TRAIN_IDS, size)
