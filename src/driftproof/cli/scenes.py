"""The driving scenes that the caller means."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftproof.cli.completion import SCENES
from driftproof.errors import ConfigurationError
from driftproof.validation import check_choice

if TYPE_CHECKING:
    from driftproof.bench.scenes import SourceScenes
    from driftproof.data import FitHeight, Scenes

__all__ = ["load_scenes", "load_source_scenes"]


def load_scenes(
    folder: Path | None,
    dataset: str | None,
    data: Path,
    split: str | None,
    unknown: Sequence[str] | None,
    height: int | None,
    width: int | None,
) -> "Scenes":
    """Frames of a folder, or a set of scenes, or the former with the classes of the latter.

    Args:
        folder: Frames without labels; None for those of the set.
        dataset: Name of the set; None for a folder whose classes are not known.
        data: The folder that holds the data sets.
        split: Of the set; None for what its reader takes.
        unknown: For CamVid, names of the classes that were not taught; None for what its reader takes.
        height: To scale to; None for as stored.
        width: To cut or pad to; None for what scaling gives.
    """
    from driftproof.data import frames

    if folder is None and dataset is None:
        raise ConfigurationError("Expected a folder of frames or `--set`, but got neither.")
    if dataset is not None:
        check_choice("set of scenes", dataset, SCENES)
    if unknown is not None and dataset != "camvid":
        raise ConfigurationError(
            f"Expected `--unknown` with `--set camvid`, but got it with {dataset or folder}. "
            "The other sets tell by their labels what is unknown."
        )
    if split is not None and (folder is not None or dataset == "synthia"):
        raise ConfigurationError(
            f"Expected `--split` with a set that has splits, but got it with {folder or dataset}. Leave it out."
        )
    size = _size(height, width)
    if folder is None:
        assert dataset is not None
        return _read(dataset, data, split, unknown, size)
    return replace(frames(folder, size=size), palette=_palette(dataset, unknown))


def load_source_scenes(
    dataset: str | None, data: Path, unknown: Sequence[str] | None, extent: tuple[int, int], count: int
) -> "SourceScenes":
    """Labelled frames of a set's training part, for methods that learn from them before the first frame.

    Args:
        dataset: Name of the set; None is refused, since an unlabelled folder has none.
        data: The folder that holds the data sets.
        unknown: As in `load_scenes`.
        extent: Height and width of the frames that will be adapted to.
        count: How many to take.
    """
    from driftproof.bench.scenes import SourceScenes
    from driftproof.data import FitHeight

    if dataset is None:
        raise ConfigurationError(
            "Expected `--set`, since this method learns from source data before the first frame. "
            "Name the set that the model was trained on."
        )
    return SourceScenes(_read(dataset, data, "train", unknown, FitHeight(*extent)), batch_size=2, limit=count)


def _read(
    dataset: str, data: Path, split: str | None, unknown: Sequence[str] | None, size: "FitHeight | None"
) -> "Scenes":
    from driftproof.data import scenes as readers

    options: dict[str, Any] = {"size": size}
    if split is not None and dataset != "synthia":
        options["split"] = split
    if unknown is not None and dataset == "camvid":
        options["unknown"] = unknown
    found: Scenes = getattr(readers, dataset)(data, **options)
    return found


def _palette(dataset: str | None, unknown: Sequence[str] | None) -> Any:  # noqa: ANN401  # classes, or nothing
    from driftproof.data.scenes import CITYSCAPES, camvid_classes

    if dataset is None:
        return ()
    if dataset != "camvid":
        return CITYSCAPES
    return camvid_classes() if unknown is None else camvid_classes(unknown)


def _size(height: int | None, width: int | None) -> "FitHeight | None":
    from driftproof.data import FitHeight

    if height is None:
        if width is not None:
            raise ConfigurationError("Expected `--height` with `--width`: frames are scaled to a height first.")
        return None
    return FitHeight(height, width)
