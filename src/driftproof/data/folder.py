"""Folders of images, of class sub-folders and of arrays."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from driftproof.data.images import ArraySet, FileSet, ImageSet, Size
from driftproof.data.npy_file import load_array
from driftproof.errors import InputError

__all__ = [
    "array_folder",
    "class_folders",
    "folder",
    "image_files",
    "locate",
]

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}


def folder(root: Path, *, size: Size = None) -> ImageSet:
    """Open a folder of unlabeled images, or one with a sub-folder per class.

    Hidden files and files that are not images are ignored. Classes are the sorted names of the sub-folders; files are
    sorted within a class.

    Args:
        root: The folder.
        size: As in `FileSet`.
    """
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"Expected {root} to be a folder of images, but it does not exist.")
    loose = [path for path in image_files(root) if path.parent == root]
    below = {child.name: image_files(child) for child in _subfolders(root)}
    classes = [name for name, images in below.items() if images]
    if loose and classes:
        raise InputError(
            f"Expected {root} to hold either images or one sub-folder per class, but it holds both, "
            f"such as {loose[0].name} and {classes[0]}."
        )
    if classes and len(classes) < len(below):  # skipping it would shift the labels of the classes after it
        without = next(name for name, images in below.items() if not images)
        raise InputError(
            f"Expected images in every sub-folder of {root}, since each is a class, but {without} holds none. "
            "Remove it if it is not a class."
        )
    if classes:
        return class_folders(root, classes=classes, size=size, name=_folder_name(root))
    return FileSet(loose, size=size, name=_folder_name(root), root=root)


def array_folder(root: Path) -> ImageSet:
    """Open `images.npy`, uint8 of shape (N, H, W, 3), and `labels.npy`, memory-mapped."""
    root = Path(root)
    images, labels = (load_array(locate(root, name)) for name in ("images.npy", "labels.npy"))
    return ArraySet(images, labels, name=_folder_name(root))


def class_folders(root: Path, *, classes: Sequence[str] | None = None, size: Size = None, name: str) -> FileSet:
    """Open a folder with one sub-folder per class.

    Args:
        root: Folder that holds the sub-folders.
        classes: Names of the sub-folders in label order; None for all of them, sorted.
        size: As in `FileSet`.
        name: As in `FileSet`.
    """
    there = [child.name for child in _subfolders(root)]
    classes = there if classes is None else classes
    if unknown := sorted(set(there) - set(classes)):
        raise InputError(f"Expected {root} to hold only the {len(classes)} known classes, but found {unknown[0]} too.")
    files = [(path, label) for label, wanted in enumerate(classes) for path in image_files(root / wanted)]
    if not files:
        raise InputError(f"Expected {root} to hold one folder of images per class, but found no image in any.")
    paths, labels = zip(*files, strict=True)
    return FileSet(paths, labels, size=size, classes=classes, name=name, root=root)


def image_files(root: Path) -> list[Path]:
    """Return the sorted image files below a folder, following links; empty if it does not exist."""
    found = _iter_images(root) if root.is_dir() else ()
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _iter_images(root: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    here = root.resolve()
    if here in above:  # a link cycle
        return
    with os.scandir(root) as entries:
        seen = [root / entry.name for entry in entries if not entry.name.startswith(".")]
    for path in seen:
        if path.is_dir():  # False for a link to itself, where `DirEntry.is_dir` raises
            yield from _iter_images(path, (*above, here))
        elif path.suffix.lower() in _SUFFIXES:
            yield path


def locate(root: Path, *names: str, dataset: str | None = None) -> Path:
    """Return the first of these paths that exists below `root`, or `root` if it has that name.

    Args:
        root: Folder to search.
        names: Paths to try, relative to it.
        dataset: Name of the data set, for the error message.
    """
    root = Path(root)
    for name in names:
        if (root / name).exists():
            return root / name
        if any(path.as_posix().endswith(f"/{name}") for path in (root.absolute(), root.resolve())) and root.exists():
            return root
    fix = f" Get it with `driftproof data get {dataset}`." if dataset else ""
    raise InputError(f"Expected {' or '.join(names)} in {root}, but it does not exist.{fix}")


def _folder_name(root: Path) -> str:
    """Return the name of a folder, also for `.`: the randomness of corruptions depends on it."""
    return root.name or root.resolve().name


def _subfolders(root: Path) -> list[Path]:
    return sorted(child for child in root.iterdir() if child.is_dir() and not child.name.startswith("."))
