"""Load images in batches, skipping files that cannot be read or have another size."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from driftproof.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from driftproof.data import FileSet
    from driftproof.data.images import Size

__all__ = ["LoadedBatch", "check_sizes", "find_images", "load_batches"]


_NOT_A_FILE = "Expected {} to be an image, but it is no regular file."


@dataclass(frozen=True, eq=False)
class LoadedBatch:
    """A batch of images.

    Attributes:
        indices: The positions of the files that could be read and have the most common size of the batch.
        pixels: Their pixels, uint8 (n, 3, H, W); None if no file could be read.
        unreadable: An error message for each other file, by position.
        wrong_sizes: How many of these have another size.
    """

    indices: tuple[int, ...]
    pixels: "Tensor | None"
    unreadable: Mapping[int, str] = field(default_factory=dict)
    wrong_sizes: int = 0


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

    if not order:
        return
    files = FileSet(paths, size=size)
    starts = range(0, len(order), batch_size)
    with ThreadPoolExecutor(max_workers=1) as loader:
        pending = loader.submit(_load_batch, files, order[:batch_size])
        for start in starts[1:]:
            batch = pending.result()
            pending = loader.submit(_load_batch, files, order[start : start + batch_size])
            yield batch
        yield pending.result()


def check_sizes(batch: LoadedBatch) -> None:
    """Raise `InputError` if fewer than half of the images of a batch have one size."""
    if batch.wrong_sizes > len(batch.indices):
        raise InputError(next(message for message in batch.unreadable.values() if "to have one size" in message))


def _load_batch(files: "FileSet", indices: Sequence[int]) -> LoadedBatch:
    unreadable = {index: _NOT_A_FILE.format(files.paths[index]) for index in indices if _is_special(files.paths[index])}
    readable = [index for index in indices if index not in unreadable]
    try:
        return LoadedBatch(tuple(readable), files.batch(readable) if readable else None, unreadable)
    except InputError:
        return _load_one_by_one(files, readable, unreadable)


def _load_one_by_one(files: "FileSet", indices: Sequence[int], unreadable: dict[int, str]) -> LoadedBatch:
    import torch

    images: dict[int, Tensor] = {}
    for index in indices:
        try:
            images[index] = files.batch([index])
        except InputError as error:
            unreadable[index] = str(error)
    if not images:
        return LoadedBatch((), None, unreadable)
    ((size, _),) = Counter(image.shape[2:] for image in images.values()).most_common(1)
    odd = [index for index, image in images.items() if image.shape[2:] != size]
    for index in odd:
        height, width = images.pop(index).shape[2:]
        unreadable[index] = (
            f"Expected the images of a batch to have one size, {size[0]}×{size[1]}, but {files.paths[index]} is "
            f"{height}×{width}. Pass `--size` to resize them."
        )
    return LoadedBatch(tuple(images), torch.cat(list(images.values())), unreadable, len(odd))


def _is_special(path: Path) -> bool:
    """Whether a path exists and is no regular file; reading a pipe may never end."""
    return path.exists() and not path.is_file()
