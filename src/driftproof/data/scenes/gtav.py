"""GTAV, "Playing for Data"."""

from pathlib import Path

import numpy as np

from driftproof.data.folder import image_files, locate
from driftproof.data.mat_file import read_mat
from driftproof.data.scenes.cityscapes import LABEL_IDS
from driftproof.data.scenes.classes import CITYSCAPES, UNKNOWN, VOID, Color
from driftproof.data.scenes.labels import ColorLabels
from driftproof.data.scenes.layout import dataset_root, labels_with_stem, pair_with_labels, parse_splits
from driftproof.data.scenes.scenes import Scenes
from driftproof.data.scenes.sizes import FitHeight
from driftproof.errors import InputError

__all__ = ["gtav"]

_OTHERS: tuple[Color, ...] = (
    (20, 20, 20),  # static
    (111, 74, 0),  # dynamic
    (81, 0, 81),  # ground
    (250, 170, 160),  # parking
    (230, 150, 140),  # rail track
    (180, 165, 180),  # guard rail
    (150, 100, 100),  # bridge
    (150, 120, 90),  # tunnel
    (0, 0, 90),  # caravan
    (0, 0, 110),  # trailer
)

_LABELS = ColorLabels(
    {
        (0, 0, 0): VOID,
        **dict.fromkeys(_OTHERS, UNKNOWN),
        **{each.color: index for index, each in enumerate(CITYSCAPES)},
    },
    gray=LABEL_IDS,
)


def gtav(root: Path, *, split: str = "all", size: FitHeight | None = None) -> Scenes:
    """Read GTAV from `images` and `labels`.

    Color label images, with or without a palette, are read by color. Gray ones hold the label IDs of Cityscapes.

    Args:
        root: Folder that holds both, directly or in `gtav`.
        split: all; or train, val or test of the official `split.mat`, or several of them joined by a plus sign.
        size: Size of the frames. Most are stored as 1052×1914, a few differ by some rows:
            `FitHeight(800, width=1455)` gives them one size.
    """
    folder = locate(dataset_root(root, "gtav"), "images", dataset="gtav")
    frames = image_files(folder)
    if split != "all":
        frames = _select_split(frames, locate(folder.parent, "split.mat", dataset="gtav"), split)
    scenes = pair_with_labels(frames, labels_with_stem(folder.with_name("labels")))
    return Scenes(f"gtav/{split}", scenes, CITYSCAPES, _LABELS, size)


def _select_split(frames: list[Path], table: Path, split: str) -> list[Path]:
    columns = [f"{part}Ids" for part in parse_splits(split, ("train", "val", "test"))]
    content = read_mat(table, columns)
    if missing := [column for column in columns if column not in content]:
        raise InputError(f"Expected {table} to hold the official split, but it lacks {missing[0]}. Download it again.")
    numbers = set(np.concatenate([content[column].ravel() for column in columns]).tolist())
    return [frame for frame in frames if frame.stem.isdecimal() and int(frame.stem) in numbers]
