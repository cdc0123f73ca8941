"""Corrupted versions of image sets, computed on demand or cached on disk."""

import contextlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from driftproof.corruptions import FrostPhotos, corrupt, find_frost_photos, jpeg
from driftproof.data.images import ArraySet, ImageSet
from driftproof.data.npy_file import load_array
from driftproof.data.npy_rows import write_rows
from driftproof.errors import InputError
from driftproof.files import atomic_write, read_json

__all__ = ["PUBLISHED_QUALITY", "Corrupted", "cache_to_disk", "check_same_protocol", "stack_severities"]

Progress = Callable[[str, int], None]

PUBLISHED_QUALITY = 85
"""JPEG quality of the published data sets that consist of files."""

_CHUNK_SIZE = 1000


class Corrupted(ImageSet):
    """An image set with one corruption applied, computed on demand.

    Randomness belongs to each image, so an image is the same whenever and in whichever batch it is read.

    Args:
        images: The clean images.
        corruption: Name of the corruption.
        severity: From 1 to 5.
        constants: Use the constants for images of 32, 64 or 224 pixels; None chooses by the image size.
        resave: JPEG quality to re-encode with, as in the published Tiny-ImageNet-C and ImageNet-C
            (`PUBLISHED_QUALITY`); None keeps the pixels, as in CIFAR-C.
        frost_photos: Photos for frost; None uses those of the `imagecorruptions-imaug` package.
        device: Device to compute on.
    """

    def __init__(
        self,
        images: ImageSet,
        corruption: str,
        severity: int = 5,
        *,
        constants: int | None = None,
        resave: int | None = None,
        frost_photos: FrostPhotos | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        name = f"{images.name}-c/{corruption}/{severity}"
        super().__init__(len(images), images.labels, classes=images.classes, name=name)
        self.clean = images
        self.corruption = corruption
        self.severity = severity
        self.constants = constants
        self.resave = resave
        self.frost_photos = frost_photos
        self.device = torch.device(device)

    @property
    def protocol(self) -> dict[str, Any]:
        """Everything that determines the pixels."""
        origin = None if self.corruption != "frost" or self.frost_photos is None else self.frost_photos.origin
        return {
            "set": self.clean.name,
            "clean": self._origin,
            "corruption": self.corruption,
            "severity": self.severity,
            "constants": self.constants,
            "resave": self.resave,
            "frost": origin or ("imagecorruptions" if self.corruption == "frost" else None),
        }

    @cached_property
    def _origin(self) -> str:
        return self.clean.fingerprint()

    @cached_property
    def _photos(self) -> FrostPhotos | None:
        """Frost photos, loaded once and only if needed."""
        return find_frost_photos() if self.corruption == "frost" and self.frost_photos is None else self.frost_photos

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return the corrupted images at these indices, on the CPU."""
        indices = torch.as_tensor(indices, dtype=torch.int64)
        result = corrupt(
            self.clean.batch(indices).to(self.device),
            self.corruption,
            self.severity,
            dataset=self.clean.name,
            indices=indices,
            constants=self.constants,
            frost_photos=self._photos,
        )
        return (result if self.resave is None else jpeg(result, self.resave)).cpu()


def cache_to_disk(images: Corrupted, folder: Path, *, make: bool = True, progress: Progress | None = None) -> ImageSet:
    """Return the corrupted set as an array on disk, generating it if it does not exist.

    Interrupted work resumes where it stopped; an unfinished file has another name and is never read as finished. If
    several processes ask for the same set, one generates it and the others wait. A file generated under another
    protocol raises `InputError`.

    Args:
        images: The corrupted set.
        folder: Receives `{corruption}/{severity}.npy` and its protocol as `.json`.
        make: Whether to generate a missing set. If false, `images` is returned instead, which computes images on
            demand: cheaper if only a few are needed.
        progress: Called with the name of the set and the number of images done.
    """
    path = folder / images.corruption / f"{images.severity}.npy"
    if not path.exists():
        if not make:
            images.batch([0])  # raises now if frost photos are missing, not in the middle of a stream
            return images
        path.parent.mkdir(parents=True, exist_ok=True)
        _generate_locked(images, path, progress)
    check_same_protocol(path, _read_protocol(path), images.protocol)
    return ArraySet(load_array(path), images.labels, classes=images.classes, name=images.name)


def stack_severities(clean: ImageSet, corruption: str, folder: Path) -> Path:
    """Join the five cached severities of a corruption in one file, in the layout of CIFAR-C.

    Args:
        clean: The clean set.
        corruption: Name of the corruption; all five severities have to be cached.
        folder: Folder of the cache; receives `{corruption}.npy` with severities 1 to 5 in order, and `labels.npy`.

    Returns:
        The path of the joined file.
    """
    parts = [load_array(folder / corruption / f"{severity}.npy") for severity in range(1, 6)]
    path = folder / f"{corruption}.npy"
    with atomic_write(path) as unfinished:
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        with write_rows(unfinished, shape) as write:
            for index, part in enumerate(parts):
                for start in range(0, len(part), _CHUNK_SIZE):
                    write(index * len(part) + start, part[start : start + _CHUNK_SIZE])
    with atomic_write(folder / "labels.npy") as unfinished, unfinished.open("wb") as file:
        np.save(file, clean.labels.repeat(5).numpy())
    return path


def _generate_locked(images: Corrupted, path: Path, progress: Progress | None) -> None:
    """Generate a set, or wait for the process that is generating it."""
    lock = path.with_suffix(".lock")
    with FileLock(lock):
        if not path.exists():
            _generate(images, path, progress)
    # A process still waiting for the lock will find the set generated.
    with contextlib.suppress(OSError):
        lock.unlink()


def _generate(images: Corrupted, path: Path, progress: Progress | None) -> None:
    unfinished, journal = path.with_suffix(".part.npy"), path.with_suffix(".part.json")
    done = _resume_position(images, unfinished, journal)
    shape = (len(images), *_stored_shape(images))
    with write_rows(unfinished, shape, resume=done > 0) as write:
        for start in range(done, len(images), _CHUNK_SIZE):
            indices = torch.arange(start, min(start + _CHUNK_SIZE, len(images)))
            write(start, images.batch(indices).permute(0, 2, 3, 1).numpy())
            done = start + len(indices)
            _write_json(journal, {"done": done, "protocol": images.protocol})
            if progress is not None:
                progress(images.name, done)
    _write_json(path.with_suffix(".json"), images.protocol)
    unfinished.replace(path)
    journal.unlink(missing_ok=True)


def _resume_position(images: Corrupted, unfinished: Path, journal: Path) -> int:
    try:
        noted = read_json(journal)
        shape = load_array(unfinished).shape
    except (OSError, InputError):
        return 0
    if not isinstance(noted, dict) or shape != (len(images), *_stored_shape(images)):
        return 0
    done = noted.get("done")
    if noted.get("protocol") != images.protocol or not isinstance(done, int) or not 0 <= done <= len(images):
        return 0
    return done


def _stored_shape(images: Corrupted) -> tuple[int, int, int]:
    _, channels, height, width = images.clean.batch([0]).shape
    return height, width, channels


def _read_protocol(path: Path) -> dict[str, Any]:
    try:
        protocol = read_json(path.with_suffix(".json"))
        if not isinstance(protocol, dict):
            raise InputError("it is no JSON object")
    except (OSError, InputError) as error:
        raise InputError(
            f"Expected the protocol of {path} next to it, but it cannot be read. Remove the file."
        ) from error
    return protocol


def check_same_protocol(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise `InputError` if a file was generated under another protocol.

    Args:
        path: The existing file.
        found: Its protocol.
        wanted: The protocol asked for.
    """
    different = [
        f"{key} was {found.get(key)} and is {wanted[key]} here" for key in wanted if found.get(key) != wanted[key]
    ]
    if different:
        raise InputError(f"{path} was made differently: {'; '.join(different)}. Remove it or choose another folder.")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(content))
