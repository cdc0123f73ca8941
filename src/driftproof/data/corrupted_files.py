"""Corrupted versions of folders of images, written as files."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from driftproof.data.corrupted import PUBLISHED_QUALITY, Corrupted, Progress, check_same_protocol
from driftproof.data.images import FileSet
from driftproof.errors import InputError
from driftproof.files import atomic_write, read_json
from driftproof.optional import require
from driftproof.validation import check_choice

__all__ = ["SMALL_SIDE", "FileFormat", "write_files"]

FileFormat = Literal["auto", "jpeg", "png"]

SMALL_SIDE = 128
"""Images with a shorter side below this are stored as PNG: JPEG's blocks of 8 pixels damage them too much."""

_CHUNK_SIZE = 64
_SUFFIXES = {"jpeg": ".JPEG", "png": ".png"}


def write_files(
    images: Corrupted, destination: Path, *, file_format: FileFormat = "auto", progress: Progress | None = None
) -> int:
    """Write every image of a corrupted folder as a PNG or as a JPEG of quality 85.

    JPEG is what ImageNet-C and Tiny-ImageNet-C are stored as. It is a second corruption, and a strong one on small
    images: on 32-pixel images it takes the error of BN Adapt under contrast from 21.0 to 48.8 %.

    Existing files are kept, so interrupted work resumes where it stopped. Each file is written atomically. A folder
    written under another protocol, according to its hidden `.protocol.json`, raises `InputError`. So do new images that
    sort before existing ones, because the randomness of an image depends on its index.

    Args:
        images: A corrupted `FileSet`.
        destination: Receives `{corruption}/{severity}/` with the sub-folders of the clean set.
        file_format: "jpeg", "png" or "auto": JPEG if all clean files are JPEG and the first image's shorter side is at
            least `SMALL_SIDE` pixels, else PNG.
        progress: Called with the name of the set and the number of images done.

    Returns:
        The number of files written.
    """
    pillow = require("PIL.Image", "Writing image files")
    chosen = _choose_format(images) if file_format == "auto" else file_format
    targets = _target_paths(images, destination, _SUFFIXES[check_choice("file format", chosen, _SUFFIXES)])
    _check_and_write_protocol(images, destination / images.corruption / str(images.severity), targets, chosen)
    missing = [index for index, target in enumerate(targets) if not target.exists()]
    done = len(targets) - len(missing)
    for indices, batch in _iter_batches(images, missing):
        for index, pixels in zip(indices, batch.permute(0, 2, 3, 1).numpy(), strict=True):
            targets[index].parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(targets[index]) as unfinished:
                pillow.fromarray(pixels).save(unfinished, chosen, quality=PUBLISHED_QUALITY)  # PNG has no quality
        done += len(indices)
        if progress is not None:
            progress(images.name, done)
    return len(missing)


def _choose_format(images: Corrupted) -> str:
    clean = _as_files(images)
    if any(path.suffix.lower() not in (".jpeg", ".jpg") for path in clean.paths):
        return "png"
    return "png" if min(clean.batch([0]).shape[2:]) < SMALL_SIDE else "jpeg"


def _as_files(images: Corrupted) -> FileSet:
    if not isinstance(images.clean, FileSet):
        raise InputError(
            f"Expected {images.clean.name} to be a folder of images, but it is an array. Use `cache_to_disk`."
        )
    return images.clean


def _check_and_write_protocol(images: Corrupted, folder: Path, targets: list[Path], file_format: str) -> None:
    clean = _as_files(images)
    path, names = folder / ".protocol.json", [target.relative_to(folder).as_posix() for target in targets]
    # Without the fingerprint of the clean set: images may be added after the existing ones.
    same = {key: value for key, value in images.protocol.items() if key != "clean"}
    protocol = same | {"size": str(clean.size), "format": file_format}
    if path.exists():
        noted = read_json(path)
        if not isinstance(noted, dict) or not isinstance(noted.get("images", 0), int):
            raise InputError(f"Expected {path} to hold the protocol of {folder}, but it is damaged. Remove the folder.")
        found: dict[str, Any] = {"format": "jpeg"} | noted  # older folders do not name it and hold JPEG
        check_same_protocol(folder, found, protocol)
        if found.get("names") != _hash_names(names[: found.get("images", 0)]):
            raise InputError(
                f"Expected new images to sort after those of {folder}, but one sorts before or is gone. The randomness "
                "of an image depends on its index. Remove the folder."
            )
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(protocol | {"images": len(names), "names": _hash_names(names)}))


def _hash_names(names: list[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def _target_paths(images: Corrupted, destination: Path, suffix: str) -> list[Path]:
    clean = _as_files(images)
    paths = clean.paths
    root = clean.root or Path(os.path.commonpath([path.parent for path in paths]))
    if destination.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"Expected a destination outside {root}, but {destination} is inside and would be corrupted next time."
        )
    folder = destination / images.corruption / str(images.severity)
    targets = [(folder / path.relative_to(root)).with_suffix(suffix) for path in paths]
    if len(set(targets)) < len(targets):
        twice = next(target for target in targets if targets.count(target) > 1)
        raise InputError(f"Expected images with different names, but two of them would become {twice}.")
    return targets


def _iter_batches(images: Corrupted, indices: list[int]) -> Iterator[tuple[list[int], Tensor]]:
    # Without a fixed size, images may differ in size, so they are processed one by one.
    chunk_size = 1 if _as_files(images).size is None else _CHUNK_SIZE
    for start in range(0, len(indices), chunk_size):
        chunk = indices[start : start + chunk_size]
        yield chunk, images.batch(chunk)
