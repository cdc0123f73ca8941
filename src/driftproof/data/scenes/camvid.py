"""CamVid, with some of its classes held out as unknown."""

from collections.abc import Sequence
from pathlib import Path

from driftproof.data.folder import image_files, locate
from driftproof.data.scenes.classes import UNKNOWN, VOID, SceneClass
from driftproof.data.scenes.labels import IdLabels
from driftproof.data.scenes.layout import dataset_root, labels_with_stem, pair_with_labels, parse_splits
from driftproof.data.scenes.scenes import Scene, Scenes
from driftproof.data.scenes.sizes import FitHeight
from driftproof.errors import ConfigurationError
from driftproof.validation import check_choice

__all__ = ["CAMVID", "HELD_OUT_CLASSES", "camvid", "camvid_classes"]

CAMVID = (
    SceneClass("sky", (128, 128, 128)),
    SceneClass("building", (128, 0, 0)),
    SceneClass("pole", (192, 192, 128)),
    SceneClass("road", (128, 64, 128)),
    SceneClass("pavement", (60, 40, 222)),
    SceneClass("tree", (128, 128, 0)),
    SceneClass("sign", (192, 128, 128)),
    SceneClass("fence", (64, 64, 128)),
    SceneClass("car", (64, 0, 128)),
    SceneClass("pedestrian", (64, 64, 0)),
    SceneClass("bicyclist", (0, 128, 192)),
)
"""The eleven classes of CamVid, in the order of its labels."""

HELD_OUT_CLASSES = ("pedestrian", "bicyclist", "sign")
"""The classes that are unknown by default."""


def camvid(
    root: Path,
    *,
    split: str = "test",
    unknown: Sequence[str] = HELD_OUT_CLASSES,
    size: FitHeight | None = None,
) -> Scenes:
    """Read CamVid from `train`, `val`, `test` and `trainannot`, `valannot`, `testannot`.

    The known classes are numbered consecutively. Held-out classes become `UNKNOWN`, and label 11 becomes `VOID`.

    Args:
        root: Folder that holds them, directly or in `CamVid`.
        split: train, val or test, or several joined by a plus sign.
        unknown: Names of the classes the model was not trained on.
        size: Size of the frames; None keeps the stored 360×480.
    """
    root, known, scenes = dataset_root(root, "CamVid"), camvid_classes(unknown), list[Scene]()
    for part in parse_splits(split, ("train", "val", "test")):
        frames = locate(root, part, dataset="camvid")
        scenes += pair_with_labels(image_files(frames), labels_with_stem(frames.with_name(f"{part}annot")))
    mapping = {number: known.index(each) if each in known else UNKNOWN for number, each in enumerate(CAMVID)}
    return Scenes(f"camvid/{split}", tuple(scenes), known, IdLabels({**mapping, len(CAMVID): VOID}), size)


def camvid_classes(unknown: Sequence[str] = HELD_OUT_CLASSES) -> tuple[SceneClass, ...]:
    """Return the classes of CamVid without the unknown ones.

    Examples:
        >>> len(camvid_classes()), len(camvid_classes(["sky"]))
        (8, 10)
    """
    names = [each.name for each in CAMVID]
    for name in unknown:
        check_choice("class of CamVid", name, names)
    known = tuple(each for each in CAMVID if each.name not in unknown)
    if not known:
        raise ConfigurationError("Expected `unknown` to leave at least one class, but got all of them.")
    return known
