"""Helpers for the official layouts: splits, and the label image of each frame."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from driftproof.data.scenes.scenes import Scene
from driftproof.errors import InputError
from driftproof.validation import check_choice

__all__ = ["dataset_root", "labels_with_stem", "pair_with_labels", "parse_splits"]


def parse_splits(split: str, known: Sequence[str]) -> list[str]:
    """Split a name such as "val+test" into names of splits.

    Examples:
        >>> parse_splits("val+test", ["train", "val", "test"])
        ['val', 'test']
    """
    return [check_choice("split", name, known) for name in split.split("+")]


def dataset_root(root: Path, name: str) -> Path:
    """Return the sub-folder of this name if it exists, otherwise `root`."""
    own = Path(root) / name
    return own if own.is_dir() else Path(root)


def labels_with_stem(folder: Path, ending: str = ".png") -> Callable[[Path], Path]:
    """Return a function from a frame to the label image of the same stem in `folder`."""
    return lambda frame: folder / f"{frame.stem}{ending}"


def pair_with_labels(frames: Iterable[Path], label_path: Callable[[Path], Path]) -> tuple[Scene, ...]:
    """Pair every frame with its label image; raise `InputError` if one is missing.

    Args:
        frames: The frames.
        label_path: Returns the path of the label image of a frame.
    """
    scenes = [(frame, label_path(frame)) for frame in frames]
    missing = [(frame, labels) for frame, labels in scenes if not labels.exists()]
    if missing:
        frame, labels = missing[0]
        others = f" and {len(missing) - 1} others are missing too" if len(missing) > 1 else ""
        raise InputError(
            f"Expected a label image for every frame, but {frame} has none: {labels} does not exist{others}. "
            "Unpack the labels as well, or read only the frames with `frames(folder)`."
        )
    return tuple(Scene(frame, labels) for frame, labels in scenes)
