"""Load driving scenes from the options of a command."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftproof.cli.completion import SCENES
from driftproof.errors import ConfigurationError
from driftproof.validation import check_choice

if TYPE_CHECKING:
    from driftproof.data import FitHeight, Scenes
    from driftproof.data.scenes import SourceScenes

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
    """Load a folder of frames or a data set; with both, the frames get the classes of the data set.

    Args:
        folder: Folder of unlabeled frames; None for those of the data set.
        dataset: Name of the data set; None for a folder with unknown classes.
        data: Folder that holds the data sets.
        split: Split of the data set; None for the default of its reader.
        unknown: For CamVid, the classes the model was not trained on; None for the default of its reader.
        height: Height to resize to; None keeps the stored size.
        width: Width to crop or pad to; None keeps the width after resizing.
    """
    from driftproof.data import frames

    if folder is None and dataset is None:
        raise ConfigurationError("Expected a folder of frames or `--images`, but got neither.")
    if dataset is not None:
        check_choice("set of scenes", dataset, SCENES)
    if unknown is not None and dataset != "camvid":
        raise ConfigurationError(
            f"Expected `--unknown` with `--images camvid`, but got it with {dataset or folder}. "
            "The labels of the other data sets define what is unknown."
        )
    if split is not None and (folder is not None or dataset == "synthia"):
        raise ConfigurationError(
            f"Expected `--split` with a data set that has splits, but got it with {folder or dataset}. Leave it out."
        )
    size = _size(height, width)
    if folder is None:
        assert dataset is not None
        return _read(dataset, data, split, unknown, size)
    return replace(frames(folder, size=size), palette=_palette(dataset, unknown))


def load_source_scenes(
    dataset: str | None, data: Path, unknown: Sequence[str] | None, extent: tuple[int, int], count: int
) -> "SourceScenes":
    """Load labeled training frames of a data set, for methods that are prepared on source data.

    Args:
        dataset: Name of the data set; None raises `ConfigurationError`.
        data: Folder that holds the data sets.
        unknown: As in `load_scenes`.
        extent: Height and width of the frames to adapt to.
        count: Number of frames.
    """
    from driftproof.data import FitHeight
    from driftproof.data.scenes import SourceScenes

    if dataset is None:
        raise ConfigurationError(
            "Expected `--images`, since this method has to be prepared on source data. "
            "Pass the data set that the model was trained on."
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


def _palette(dataset: str | None, unknown: Sequence[str] | None) -> Any:  # noqa: ANN401  # a tuple of classes, maybe empty
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
            raise ConfigurationError("Expected `--height` with `--width`, since frames are resized to a height first.")
        return None
    return FitHeight(height, width)
