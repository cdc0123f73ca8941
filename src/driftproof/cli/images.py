"""The images that the caller means, in batches, without those that cannot be read."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from driftproof.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from driftproof.data import FileSet

__all__ = ["LoadedBatch", "find_images", "load_batches"]


@dataclass(frozen=True, eq=False)
class LoadedBatch:
    """Some files, read.

    Attributes:
        paths: The files that are images.
        pixels: What they show, uint8 (n, 3, H, W); None where none of them is an image.
        complaints: About each file that is not.
    """

    paths: tuple[Path, ...]
    pixels: "Tensor | None"
    unreadable: tuple[str, ...] = ()


def find_images(places: Sequence[Path]) -> list[Path]:
    """The files that are given, and the images below the folders that are given, in sorted order."""
    from driftproof.data.folder import image_files

    paths: list[Path] = []
    for place in places:
        if not place.exists():
            raise InputError(f"Expected {place} to be an image or a folder of images, but there is no such file.")
        below = image_files(place) if place.is_dir() else [place]
        if not below:
            raise InputError(f"Expected images in {place}, but found none.")
        paths += below
    return paths


def load_batches(paths: Sequence[Path], *, batch_size: int, size: int | None = None) -> Iterator[LoadedBatch]:
    """The files in batches; the next one is read while the caller works on the last.

    Args:
        paths: The files.
        batch_size: Files per batch; what cannot be read makes a batch smaller.
        size: Side of the square to scale to; None for as stored.
    """
    from driftproof.data import FileSet

    files = FileSet(paths, size=None if size is None else (size, size))
    starts = range(0, len(paths), batch_size)
    with ThreadPoolExecutor(max_workers=1) as reader:
        waiting = reader.submit(_load_batch, files, range(len(paths))[:batch_size])
        for start in starts[1:]:
            reading = waiting.result()
            waiting = reader.submit(_load_batch, files, range(len(paths))[start : start + batch_size])
            yield reading
        yield waiting.result()


def _load_batch(files: "FileSet", places: Sequence[int]) -> LoadedBatch:
    try:
        return LoadedBatch(_paths(files, places), files.batch(places))
    except InputError:
        unreadable = {place: complaint for place in places if (complaint := _read_error(files, place))}
        if not unreadable:
            raise
    sound = [place for place in places if place not in unreadable]
    return LoadedBatch(_paths(files, sound), files.batch(sound) if sound else None, tuple(unreadable.values()))


def _read_error(files: "FileSet", place: int) -> str | None:
    try:
        files.batch([place])
    except InputError as error:
        return str(error)
    return None


def _paths(files: "FileSet", places: Sequence[int]) -> tuple[Path, ...]:
    return tuple(files.paths[place] for place in places)
