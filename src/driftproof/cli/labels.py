"""The option `--labels`: the true classes of images."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from driftproof.cli.class_names import ClassNames
from driftproof.errors import InputError
from driftproof.files import read_text

__all__ = ["UNKNOWN", "UNLABELED", "LabelSource", "Labels", "check_outputs", "read_labels"]

LabelSource = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        help="True classes: a folder with one sub-folder of images per class (often IMAGES itself), or a CSV of "
        "file,label. A label is an index or a name of --classes.",
    ),
]

UNLABELED, UNKNOWN = -1, -2
_LONGEST = 19  # digits of a number of 64 bits
"""Labels of images without a label, and of images of a class that the model does not have."""


@dataclass(frozen=True)
class Labels:
    """True classes of images.

    Attributes:
        values: An index for each image, or `UNLABELED` or `UNKNOWN`; these count in no accuracy.
        classes: How many classes the labels name by their order alone; 0 if they name them by index or name.
        unknown: Names of classes that the model does not have.
    """

    values: tuple[int, ...]
    classes: int = 0
    unknown: tuple[str, ...] = ()


def read_labels(source: Path, paths: Sequence[Path], names: ClassNames = (), roots: Sequence[Path] = ()) -> Labels:
    """Return the label of each image.

    Sub-folders are classes: by name if class names are given, by number if all are numbers, else in sorted order.

    Args:
        source: Folder with one sub-folder per class, or a CSV file.
        paths: The images.
        names: The model's class names, in the order of its outputs.
        roots: Folders that the files of a CSV may be relative to, besides its own folder and the current one.
    """
    if not source.exists():
        raise InputError(f"Expected {source} to be a folder of classes or a CSV of file,label, but it does not exist.")
    found = _folder_labels(source, paths) if source.is_dir() else _csv_labels(source, paths, roots)
    texts = {text for text in found if text is not None}
    if not texts:
        raise InputError(f"Expected labels in {source} for these images, but it has none for any of them.")
    ordered = 0
    if names and texts & set(names):
        indices = {name: _find(name, names, source) for name in texts}
    elif all(text.removeprefix("-").isdecimal() and len(text) < _LONGEST for text in texts):
        indices = {text: max(int(text), UNLABELED) for text in texts}
    elif source.is_dir() and not names:
        folders = sorted(child.name for child in source.iterdir() if child.is_dir() and not child.name.startswith("."))
        indices, ordered = {name: index for index, name in enumerate(folders)}, len(folders)
    else:
        raise InputError(
            f"Expected the labels of {source} to be indices or names of `--classes`, but got {min(texts)!r}."
        )
    values = tuple(UNLABELED if text is None else indices[text] for text in found)
    unknown = tuple(sorted(text for text in texts if indices[text] == UNKNOWN))
    return Labels(values, ordered, unknown)


def check_outputs(outputs: int, names: ClassNames, labels: Labels | None) -> None:
    """Raise `InputError` if the model does not have as many outputs as there are classes.

    Args:
        outputs: Number of the model's outputs.
        names: Names of `--classes`; empty if there are none.
        labels: The labels; None if there are none.
    """
    if names and len(names) != outputs:
        raise InputError(f"Expected `--classes` to name the model's {outputs} classes, but it names {len(names)}.")
    if labels is None:
        return
    if labels.classes not in (0, outputs):
        raise InputError(
            f"Expected one sub-folder of `--labels` for each of the model's {outputs} classes, but got "
            f"{labels.classes}. Pass the model's class names with `--classes`, then sub-folders count by name."
        )
    if max(labels.values) >= outputs:
        raise InputError(f"Expected labels below {outputs}, the model's classes, but got {max(labels.values)}.")


def _find(name: str, names: ClassNames, source: Path) -> int:
    if names.count(name) > 1:
        raise InputError(f"Expected the labels of {source} to name one class each, but {name!r} names several.")
    return names.index(name) if name in names else UNKNOWN


def _folder_labels(source: Path, paths: Sequence[Path]) -> list[str | None]:
    found: list[str | None] = []
    for path in paths:
        parts = _parts_below(source, path)
        if len(parts) < 2:
            raise InputError(f"Expected {path} in a sub-folder of {source}, one per class, but it is not.")
        found.append(parts[0])
    return found


def _parts_below(folder: Path, path: Path) -> tuple[str, ...]:
    for whole in (Path.absolute, Path.resolve):  # links below the folder keep their names if possible
        if whole(path).is_relative_to(whole(folder)):
            return whole(path).relative_to(whole(folder)).parts
    return ()


def _csv_labels(source: Path, paths: Sequence[Path], roots: Sequence[Path]) -> list[str | None]:
    places = {path.resolve(): index for index, path in enumerate(paths)}
    found: list[str | None] = [None] * len(paths)
    try:
        rows = list(filter(None, csv.reader(StringIO(read_text(source), newline=""))))
    except csv.Error as error:
        raise InputError(f"Expected lines of file,label in {source}, but they cannot be read: {error}.") from error
    for row in rows:
        if len(row) < 2:
            raise InputError(f"Expected lines of file,label in {source}, but got {','.join(row)!r}.")
        for folder in (source.parent, Path(), *roots):
            try:
                index = places.get((folder / row[0]).resolve())
            except (OSError, ValueError) as error:  # a name that no file can have
                raise InputError(f"Expected names of files in {source}, but got {row[0][:80]!r}: {error}.") from error
            if index is not None:
                found[index] = row[1].strip() or None
                break
    return found
