"""What the official layouts have in common: splits, and label images beside frames."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from driftproof.data.scenes.scenes import Scene
from driftproof.errors import InputError
from driftproof.validation import check_choice

__all__ = ["dataset_root", "labels_with_stem", "pair_with_labels", "parse_splits"]


def parse_splits(split: str, known: Sequence[str]) -> list[str]:
    """The splits that are meant: one, or several joined by a plus sign.

    Examples:
        >>> parse_splits("val+test", ["train", "val", "test"])
        ['val', 'test']
    """
    return [check_choice("split", name, known) for name in split.split("+")]


def dataset_root(root: Path, name: str) -> Path:
    """Where a data set lies: in a folder of its name, if there is one, so that several can share a root."""
    own = Path(root) / name
    return own if own.is_dir() else Path(root)


def labels_with_stem(folder: Path, ending: str = ".png") -> Callable[[Path], Path]:
    """Where label images are that are called like their frames, but for how they end."""
    return lambda frame: folder / f"{frame.stem}{ending}"


def pair_with_labels(frames: Iterable[Path], label_path: Callable[[Path], Path]) -> tuple[Scene, ...]:
    """Frames with their label images, every one of which has to be there.

    Args:
        frames: The frames.
        label_path: Where the label image of a frame is.
    """
    scenes = [(frame, label_path(frame)) for frame in frames]
    missing = [(frame, labels) for frame, labels in scenes if not labels.exists()]
    if missing:
        frame, labels = missing[0]
        others = f" and {len(missing) - 1} others are missing too" if len(missing) > 1 else ""
        raise InputError(
            f"Expected a label image for every frame, but {frame} has none: {labels} is not there{others}. "
            "Unpack the labels as well, or read the frames alone with `frames(folder)`."
        )
    return tuple(Scene(frame, labels) for frame, labels in scenes)
