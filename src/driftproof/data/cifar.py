"""CIFAR-10 and CIFAR-100, clean and corrupted."""

from pathlib import Path

import numpy as np

from driftproof.corruptions import check_corruption
from driftproof.data.folder import locate
from driftproof.data.images import ArraySet, ImageSet
from driftproof.data.npy_file import load_array
from driftproof.data.plain_pickle import read_pickle
from driftproof.errors import InputError

__all__ = ["cifar10", "cifar10_c", "cifar100", "cifar100_c"]


def cifar10(root: Path, *, train: bool = False) -> ImageSet:
    """Read CIFAR-10 from `cifar-10-batches-py`.

    Args:
        root: Folder that holds it.
        train: Whether to read the training images, from those of the five files that exist.
    """
    home = locate(root, "cifar-10-batches-py", dataset="cifar10")
    files = [home / f"data_batch_{number}" for number in range(1, 6)] if train else [home / "test_batch"]
    there = [path for path in files if path.exists()]
    if not there:
        raise InputError(f"Expected {files[0].name} in {home}, but it does not exist.")
    classes = _read_class_names(home / "batches.meta", "label_names")
    return _read(there, "labels", classes, "cifar10/train" if train else "cifar10")


def cifar100(root: Path, *, train: bool = False) -> ImageSet:
    """Read CIFAR-100 with its 100 fine classes from `cifar-100-python`.

    Args:
        root: Folder that holds it.
        train: Whether to read the training images.
    """
    home = locate(root, "cifar-100-python", dataset="cifar100")
    path = locate(home, "train" if train else "test", dataset="cifar100")
    classes = _read_class_names(home / "meta", "fine_label_names")
    return _read([path], "fine_labels", classes, "cifar100/train" if train else "cifar100")


def cifar10_c(root: Path, corruption: str, severity: int) -> ImageSet:
    """Read CIFAR-10-C at one corruption and severity, memory-mapped."""
    return _read_corrupted(locate(root, "CIFAR-10-C", dataset="cifar10-c"), "cifar10-c", corruption, severity)


def cifar100_c(root: Path, corruption: str, severity: int) -> ImageSet:
    """Read CIFAR-100-C at one corruption and severity, memory-mapped."""
    return _read_corrupted(locate(root, "CIFAR-100-C", dataset="cifar100-c"), "cifar100-c", corruption, severity)


def _read_corrupted(home: Path, name: str, corruption: str, severity: int) -> ImageSet:
    check_corruption(corruption, severity)
    images = load_array(locate(home, f"{corruption}.npy", dataset=name))
    labels = load_array(locate(home, "labels.npy", dataset=name))
    if images.ndim != 4 or labels.shape != images.shape[:1] or len(images) % 5:
        raise InputError(
            f"Expected {corruption}.npy in {home} to hold five severities of every image in labels.npy, "
            f"but got images of shape {images.shape} and labels of shape {labels.shape}."
        )
    each = len(images) // 5
    rows = slice((severity - 1) * each, severity * each)
    return ArraySet(images[rows], labels[rows], name=f"{name}/{corruption}/{severity}")


def _read(paths: list[Path], key: str, classes: tuple[str, ...], name: str) -> ImageSet:
    images, labels = [], []
    for path in paths:
        content = read_pickle(path)
        pixels, own = content.get("data"), content.get(key)
        if (
            not isinstance(pixels, np.ndarray)
            or pixels.dtype != np.uint8
            or pixels.ndim != 2
            or pixels.shape[1] != 3 * 32 * 32
        ):
            raise InputError(f"Expected `data` in {path} to be uint8 of shape (N, 3072). Download the archive again.")
        if not isinstance(own, list) or len(own) != len(pixels) or not all(isinstance(label, int) for label in own):
            raise InputError(f"Expected `{key}` in {path} to be a list of {len(pixels)} integers.")
        images.append(pixels.reshape(-1, 3, 32, 32))
        labels += own
    return ArraySet(np.concatenate(images), labels, classes=classes, name=name)


def _read_class_names(path: Path, key: str) -> tuple[str, ...]:
    if not path.exists():
        return ()
    names = read_pickle(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise InputError(f"Expected `{key}` in {path} to be a list of names.")
    return tuple(name.decode("latin1") if isinstance(name, bytes) else name for name in names)
