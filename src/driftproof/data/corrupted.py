"""Corrupted versions of any image set: made on demand, or once and kept."""

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
from driftproof.data.folder import load_array
from driftproof.data.images import ArraySet, ImageSet
from driftproof.errors import InputError
from driftproof.files import atomic_write

__all__ = ["PUBLISHED_QUALITY", "Corrupted", "cache_to_disk", "check_same_protocol", "stack_severities"]

Progress = Callable[[str, int], None]

PUBLISHED_QUALITY = 85
"""JPEG quality with which the published sets that consist of files were saved after corruption."""

_CHUNK_SIZE = 1000


class Corrupted(ImageSet):
    """An image set seen through one corruption.

    What is random belongs to each image, so any of them can be asked for at any time and comes out the same.

    Args:
        images: The clean set.
        corruption: Its name.
        severity: From 1 to 5.
        constants: Strength as for images of 32, 64 or 224 pixels; None goes by the images' size.
        resave: JPEG quality to save with afterwards, as the published Tiny-ImageNet-C and ImageNet-C were
            (`PUBLISHED_QUALITY`); None keeps the pixels, as in the CIFAR sets.
        frost_photos: For frost; None looks for the `imagecorruptions-imaug` package.
        device: Where to compute.
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
        """What decides every pixel."""
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
        """Looked for once, and only where they are needed."""
        return find_frost_photos() if self.corruption == "frost" and self.frost_photos is None else self.frost_photos

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """The corrupted images at these indices, on the CPU."""
        places = torch.as_tensor(indices, dtype=torch.int64)
        result = corrupt(
            self.clean.batch(places).to(self.device),
            self.corruption,
            self.severity,
            dataset=self.clean.name,
            indices=places,
            constants=self.constants,
            frost_photos=self._photos,
        )
        return (result if self.resave is None else jpeg(result, self.resave)).cpu()


def cache_to_disk(images: Corrupted, folder: Path, *, make: bool = True, progress: Progress | None = None) -> ImageSet:
    """The corrupted set as an array on disk, made if it is not there yet.

    Interrupted work is taken up where it stopped; an unfinished file bears another name and is never read as finished.
    Where several processes ask for it, one makes it and the others wait. A file made under another protocol is refused.

    Args:
        images: What to keep.
        folder: Gets `{corruption}/{severity}.npy` with its protocol beside it.
        make: Otherwise what is not there yet stays so, and its images are computed whenever they are asked for: less
            work where only a few of them will be.
        progress: Called with the set's name and the number of images done.
    """
    path = folder / images.corruption / f"{images.severity}.npy"
    if not path.exists():
        if not make:
            images.batch([0])  # what they need and is not there is missed now, not on the way through a stream
            return images
        path.parent.mkdir(parents=True, exist_ok=True)
        _generate_locked(images, path, progress)
    check_same_protocol(path, _read_protocol(path), images.protocol)
    return ArraySet(load_array(path), images.labels, classes=images.classes, name=images.name)


def stack_severities(clean: ImageSet, corruption: str, folder: Path) -> Path:
    """Join the five kept severities of a corruption in one file, as the published CIFAR-C sets are laid out.

    Args:
        clean: The clean set the kept ones were made of.
        corruption: Which; all five severities have to be there.
        folder: Where they were kept; gets `{corruption}.npy`, severities 1 to 5 one after the other, and `labels.npy`.
    """
    parts = [load_array(folder / corruption / f"{severity}.npy") for severity in range(1, 6)]
    path = folder / f"{corruption}.npy"
    with atomic_write(path) as unfinished:
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        whole = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.uint8, shape=shape)
        for index, part in enumerate(parts):
            whole[index * len(part) : (index + 1) * len(part)] = part
        whole.flush()
    with atomic_write(folder / "labels.npy") as unfinished, unfinished.open("wb") as file:
        np.save(file, clean.labels.repeat(5).numpy())
    return path


def _generate_locked(images: Corrupted, path: Path, progress: Progress | None) -> None:
    """Make a set, or wait for whoever is making it: two at work on one file would spoil it for both."""
    lock = path.with_suffix(".lock")
    with FileLock(lock):
        if not path.exists():
            _generate(images, path, progress)
    # Whoever still waits for it finds the set made.
    with contextlib.suppress(OSError):
        lock.unlink()


def _generate(images: Corrupted, path: Path, progress: Progress | None) -> None:
    unfinished, journal = path.with_suffix(".part.npy"), path.with_suffix(".part.json")
    done = _resume_position(images, unfinished, journal)
    shape = (len(images), *_stored_shape(images))
    mode = "r+" if done else "w+"
    array = np.lib.format.open_memmap(unfinished, mode=mode, dtype=np.uint8, shape=None if done else shape)
    for start in range(done, len(images), _CHUNK_SIZE):
        places = torch.arange(start, min(start + _CHUNK_SIZE, len(images)))
        array[start : start + len(places)] = images.batch(places).permute(0, 2, 3, 1).numpy()
        array.flush()
        done = start + len(places)
        _write_json(journal, {"done": done, "protocol": images.protocol})
        if progress is not None:
            progress(images.name, done)
    del array
    _write_json(path.with_suffix(".json"), images.protocol)
    unfinished.replace(path)
    journal.unlink(missing_ok=True)


def _resume_position(images: Corrupted, unfinished: Path, journal: Path) -> int:
    try:
        noted = json.loads(journal.read_text())
        shape = load_array(unfinished).shape
    except (OSError, ValueError, InputError):
        return 0
    fits = noted.get("protocol") == images.protocol and shape == (len(images), *_stored_shape(images))
    return int(noted["done"]) if fits else 0


def _stored_shape(images: Corrupted) -> tuple[int, int, int]:
    _, channels, height, width = images.clean.batch([0]).shape
    return height, width, channels


def _read_protocol(path: Path) -> dict[str, Any]:
    try:
        protocol: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"Expected the protocol of {path} beside it, but it cannot be read. Remove the file."
        ) from error
    return protocol


def check_same_protocol(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to mix what was made in one way with what would be made in another.

    Args:
        path: What was made.
        found: How it was made.
        wanted: How it would be.
    """
    different = [
        f"{key} was {found.get(key)} and is {wanted[key]} here" for key in wanted if found.get(key) != wanted[key]
    ]
    if different:
        raise InputError(f"{path} was made differently: {'; '.join(different)}. Remove it or choose another folder.")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(content))
