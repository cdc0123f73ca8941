"""Load images in batches, skipping files that cannot be read."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from driftproof.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from driftproof.data import FileSet
    from driftproof.data.images import Size

__all__ = ["LoadedBatch", "find_images", "load_batches"]


@dataclass(frozen=True, eq=False)
class LoadedBatch:
    """A batch of images.

    Attributes:
        indices: The positions of the files that could be read.
        pixels: Their pixels, uint8 (n, 3, H, W); None if no file could be read.
        unreadable: An error message for each file that could not be read.
    """

    indices: tuple[int, ...]
    pixels: "Tensor | None"
    unreadable: tuple[str, ...] = ()


def find_images(sources: Sequence[Path]) -> list[Path]:
    """Return the given files, and the images below the given folders in sorted order."""
    from driftproof.data.folder import image_files

    paths: list[Path] = []
    for source in sources:
        if not source.exists():
            raise InputError(f"Expected {source} to be an image or a folder of images, but it does not exist.")
        below = image_files(source) if source.is_dir() else [source]
        if not below:
            raise InputError(f"Expected images in {source}, but found none.")
        paths += below
    return paths


def load_batches(
    paths: Sequence[Path], order: Sequence[int], *, batch_size: int, size: "Size" = None
) -> Iterator[LoadedBatch]:
    """Iterate over the files in batches, loading the next batch in the background.

    Args:
        paths: The files.
        order: Positions of the files, in the order to go through.
        batch_size: Number of files per batch; unreadable files make a batch smaller.
        size: As in `driftproof.data.FileSet`.
    """
    from driftproof.data import FileSet

    files = FileSet(paths, size=size)
    starts = range(0, len(order), batch_size)
    with ThreadPoolExecutor(max_workers=1) as loader:
        pending = loader.submit(_load_batch, files, order[:batch_size])
        for start in starts[1:]:
            batch = pending.result()
            pending = loader.submit(_load_batch, files, order[start : start + batch_size])
            yield batch
        yield pending.result()


def _load_batch(files: "FileSet", indices: Sequence[int]) -> LoadedBatch:
    try:
        return LoadedBatch(tuple(indices), files.batch(indices))
    except InputError:
        unreadable = {index: message for index in indices if (message := _read_error(files, index))}
        if not unreadable:
            raise
    readable = tuple(index for index in indices if index not in unreadable)
    return LoadedBatch(readable, files.batch(readable) if readable else None, tuple(unreadable.values()))


def _read_error(files: "FileSet", index: int) -> str | None:
    try:
        files.batch([index])
    except InputError as error:
        return str(error)
    return None
