"""Tiny-ImageNet, clean and corrupted."""

from pathlib import Path

from driftproof.corruptions import check_corruption
from driftproof.data.folder import class_folders, image_files, locate
from driftproof.data.images import FileSet, ImageSet
from driftproof.errors import InputError
from driftproof.files import read_text

__all__ = ["tiny_imagenet", "tiny_imagenet_c"]

_SIZE = (64, 64)


def tiny_imagenet(root: Path, *, train: bool = False) -> ImageSet:
    """Read Tiny-ImageNet's validation images from `tiny-imagenet-200/val`.

    Both layouts are read: as distributed, and sorted into class folders. Labels are the indices of the sorted WordNet
    identifiers, as in `tiny_imagenet_c`.

    Args:
        root: Folder that holds `tiny-imagenet-200`.
        train: Whether to read the training images instead.
    """
    home = locate(root, "tiny-imagenet-200", dataset="tiny-imagenet")
    part = locate(home, "train" if train else "val", dataset="tiny-imagenet")
    name = "tiny-imagenet/train" if train else "tiny-imagenet"
    annotations = part / "val_annotations.txt"
    if annotations.exists() and (part / "images").is_dir():
        return _read_annotated(part / "images", annotations, _read_wnids(home), name)
    return class_folders(part, classes=_read_wnids(home), size=_SIZE, name=name)


def tiny_imagenet_c(root: Path, corruption: str, severity: int) -> ImageSet:
    """Read Tiny-ImageNet-C from `Tiny-ImageNet-C/{corruption}/{severity}/{class}`.

    The images are stored class by class; shuffle them before adapting.
    """
    check_corruption(corruption, severity)
    home = locate(root, "Tiny-ImageNet-C", dataset="tiny-imagenet-c")
    part = locate(home, f"{corruption}/{severity}", dataset="tiny-imagenet-c")
    classes = _read_wnids(Path(root) / "tiny-imagenet-200")
    return class_folders(part, classes=classes, size=_SIZE, name=f"tiny-imagenet-c/{corruption}/{severity}")


def _read_wnids(home: Path) -> list[str] | None:
    listed = home / "wnids.txt"
    return sorted(read_text(listed).split()) if listed.exists() else None


def _read_annotated(images: Path, annotations: Path, classes: list[str] | None, name: str) -> ImageSet:
    lines = [line.split() for line in read_text(annotations).splitlines() if line.strip()]
    if any(len(line) < 2 for line in lines):
        raise InputError(f"Expected every line of {annotations} to start with a file name and a class.")
    class_of = {line[0]: line[1] for line in lines}
    order = {identifier: label for label, identifier in enumerate(classes or sorted(set(class_of.values())))}
    paths = image_files(images)
    for path in paths:
        if class_of.get(path.name) not in order:
            raise InputError(f"Expected a known class for {path.name} in {annotations}, but got none.")
    return FileSet(paths, [order[class_of[path.name]] for path in paths], size=_SIZE, classes=list(order), name=name)
