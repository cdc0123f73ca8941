"""Corrupted versions of folders of images, written as files."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from driftproof.data.corrupted import PUBLISHED_QUALITY, Corrupted, Progress, check_same_protocol
from driftproof.data.images import FileSet
from driftproof.errors import InputError
from driftproof.files import atomic_write
from driftproof.optional import require

__all__ = ["write_files"]

_CHUNK_SIZE = 64


def write_files(images: Corrupted, destination: Path, *, progress: Progress | None = None) -> int:
    """Write every image of a corrupted folder as a JPEG of quality 85.

    Existing files are kept, so interrupted work resumes where it stopped. Each file is written atomically. A folder
    written under another protocol, according to its hidden `.protocol.json`, raises `InputError`. So do new images that
    sort before existing ones, because the randomness of an image depends on its index.

    Args:
        images: A corrupted `FileSet`.
        destination: Receives `{corruption}/{severity}/` with the sub-folders of the clean set.
        progress: Called with the name of the set and the number of images done.

    Returns:
        The number of files written.
    """
    pillow = require("PIL.Image", "Writing image files")
    targets = _target_paths(images, destination)
    _check_and_write_protocol(images, destination / images.corruption / str(images.severity), targets)
    missing = [index for index, target in enumerate(targets) if not target.exists()]
    done = len(targets) - len(missing)
    for indices, batch in _iter_batches(images, missing):
        for index, pixels in zip(indices, batch.permute(0, 2, 3, 1).numpy(), strict=True):
            targets[index].parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(targets[index]) as unfinished:
                pillow.fromarray(pixels).save(unfinished, "JPEG", quality=PUBLISHED_QUALITY)
        done += len(indices)
        if progress is not None:
            progress(images.name, done)
    return len(missing)


def _check_and_write_protocol(images: Corrupted, folder: Path, targets: list[Path]) -> None:
    assert isinstance(images.clean, FileSet)
    path, names = folder / ".protocol.json", [target.relative_to(folder).as_posix() for target in targets]
    # Without the fingerprint of the clean set: images may be added after the existing ones.
    same = {key: value for key, value in images.protocol.items() if key != "clean"}
    protocol = same | {"size": str(images.clean.size)}
    if path.exists():
        found = json.loads(path.read_text())
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


def _target_paths(images: Corrupted, destination: Path) -> list[Path]:
    if not isinstance(images.clean, FileSet):
        raise InputError(
            f"Expected {images.clean.name} to be a folder of images, but it is an array. Use `cache_to_disk`."
        )
    paths = images.clean.paths
    root = images.clean.root or Path(os.path.commonpath([path.parent for path in paths]))
    if destination.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"Expected a destination outside {root}, but {destination} is inside and would be corrupted next time."
        )
    folder = destination / images.corruption / str(images.severity)
    targets = [(folder / path.relative_to(root)).with_suffix(".JPEG") for path in paths]
    if len(set(targets)) < len(targets):
        twice = next(target for target in targets if targets.count(target) > 1)
        raise InputError(f"Expected images with different names, but two of them would become {twice}.")
    return targets


def _iter_batches(images: Corrupted, indices: list[int]) -> Iterator[tuple[list[int], Tensor]]:
    assert isinstance(images.clean, FileSet)
    # Without a fixed size, images may differ in size, so they are processed one by one.
    chunk_size = 1 if images.clean.size is None else _CHUNK_SIZE
    for start in range(0, len(indices), chunk_size):
        chunk = indices[start : start + chunk_size]
        yield chunk, images.batch(chunk)
