"""CIFAR-10 and CIFAR-100, clean and corrupted."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from driftproof.corruptions import check_corruption
from driftproof.data.folder import load_array, locate
from driftproof.data.images import ArraySet, ImageSet
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
        content = _load_pickle(path)
        pixels, own = _array(content.get("data")), content.get(key)
        if pixels is None or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3 * 32 * 32:
            raise InputError(f"Expected `data` in {path} to be uint8 of shape (N, 3072). Download the archive again.")
        if not isinstance(own, list) or len(own) != len(pixels) or not all(isinstance(label, int) for label in own):
            raise InputError(f"Expected `{key}` in {path} to be a list of {len(pixels)} integers.")
        images.append(pixels.reshape(-1, 3, 32, 32))
        labels += own
    return ArraySet(np.concatenate(images), labels, classes=classes, name=name)


def _read_class_names(path: Path, key: str) -> tuple[str, ...]:
    if not path.exists():
        return ()
    names = _load_pickle(path).get(key)
    if not isinstance(names, list):
        raise InputError(f"Expected `{key}` in {path} to be a list of names.")
    return tuple(_to_str(name) for name in names)


def _load_pickle(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            content = _Unpickler(stream, encoding="bytes").load()
    except InputError as error:
        raise InputError(f"Expected {path} to hold only arrays, lists and numbers, but it loads {error}.") from error
    # A damaged pickle can raise almost anything.
    except Exception as error:
        raise InputError(f"Expected {path} to be a complete pickle, but it cannot be read: {error!r}.") from error
    if not isinstance(content, dict):
        raise InputError(f"Expected {path} to hold a dictionary, but it holds {type(content).__name__}.")
    return {_to_str(key): value for key, value in content.items()}


def _to_str(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _array(value: object) -> npt.NDArray[Any] | None:
    return value.values if isinstance(value, _Array) else None


class _DType:
    """Replaces `numpy.dtype` while unpickling; only integer types are allowed."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.dtype = np.dtype(_to_str(code))
        if self.dtype.kind not in "iu":
            raise ValueError(f"an array of {self.dtype}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = _to_str(state[1])
        self.dtype = self.dtype if order == "|" else self.dtype.newbyteorder(order)  # type: ignore[arg-type]


class _Array:
    """Replaces `numpy.ndarray` while unpickling, so that the pickle calls no numpy code."""

    values: npt.NDArray[Any]

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[int, tuple[int, ...], _DType, bool, bytes]) -> None:
        _, shape, kind, columns_first, raw = state
        self.values = np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if columns_first else "C")


def _from_buffer(raw: bytes, kind: _DType, shape: tuple[int, ...], order: str | bytes) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, _to_str(order) == "F", raw))
    return array


def _latin1(text: str, *_: object) -> bytes:
    return text.encode("latin1")


_ALLOWED_GLOBALS = {
    "_codecs.encode": _latin1,
    "numpy.dtype": _DType,
    "numpy.ndarray": _Array,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.core.numeric._frombuffer": _from_buffer,
    "numpy._core.numeric._frombuffer": _from_buffer,
}


class _Unpickler(pickle.Unpickler):
    """Unpickles integer arrays, lists, dictionaries, strings and numbers; imports nothing."""

    def find_class(self, module: str, name: str) -> object:
        try:
            return _ALLOWED_GLOBALS[f"{module}.{name}"]
        except KeyError:
            raise InputError(f"`{module}.{name}`; nothing was executed. Download the archive again") from None
