"""SYNTHIA-RAND-CITYSCAPES."""

from pathlib import Path

from driftproof.data.folder import image_files, locate
from driftproof.data.scenes.classes import CITYSCAPES, UNKNOWN, VOID
from driftproof.data.scenes.labels import IdLabels
from driftproof.data.scenes.layout import dataset_root, labels_with_stem, pair_with_labels
from driftproof.data.scenes.scenes import Scenes
from driftproof.data.scenes.sizes import FitHeight
from driftproof.errors import InputError
from driftproof.files import read_text

__all__ = ["synthia"]

_TRAIN_LABELS = (3, 4, 2, 21, 5, 7, 15, 9, 6, 16, 1, 10, 17, 8, 18, 19, 20, 12, 11)

_LABELS = IdLabels(
    {
        **dict.fromkeys(range(23), UNKNOWN),
        0: VOID,
        **{number: index for index, number in enumerate(_TRAIN_LABELS)},
    }
)


def synthia(root: Path, *, listing: Path | None = None, size: FitHeight | None = None) -> Scenes:
    """Read SYNTHIA-RAND-CITYSCAPES from `RGB` and `GT/LABELS`.

    Args:
        root: Folder that holds both, directly or in `synthia`.
        listing: Text file with the names of the frames to read, one per line; None for all. There is no official split.
        size: Size of the frames; None keeps the stored 760×1280.
    """
    folder = locate(dataset_root(root, "synthia"), "RGB", dataset="synthia")
    frames = image_files(folder)
    if listing is not None:
        frames = _select_listed(frames, Path(listing))
    scenes = pair_with_labels(frames, labels_with_stem(folder.parent / "GT" / "LABELS"))
    name = "synthia" if listing is None else f"synthia/{Path(listing).stem}"
    return Scenes(name, scenes, CITYSCAPES, _LABELS, size)


def _select_listed(frames: list[Path], listing: Path) -> list[Path]:
    try:
        lines = read_text(listing).split("\n")
    except OSError as error:
        raise InputError(f"Expected {listing} to be a list of frames, but it cannot be read: {error}.") from error
    wanted = {Path(line.strip()).stem for line in lines if line.strip()}
    if missing := sorted(wanted - {frame.stem for frame in frames}):
        raise InputError(f"Expected every frame in {listing} to exist, but {missing[0]} does not.")
    return [frame for frame in frames if frame.stem in wanted]
