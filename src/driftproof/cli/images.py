"""Load images in batches, skipping files that cannot be read or have another size."""

import glob
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from driftproof.cli.frames import Frame
from driftproof.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from driftproof.data.images import Size

__all__ = ["LoadedBatch", "check_sizes", "find_images", "load_batches", "load_frames", "make_decoders"]


@dataclass(frozen=True, eq=False)
class LoadedBatch:
    """A batch of images.

    Attributes:
        names: The names of all images of the batch by position in the run, in the order of the rows.
        indices: The positions of the images that could be read and have the most common size of the batch.
        pixels: Their pixels, uint8 (n, 3, H, W); None if no image could be read.
        unreadable: An error message for each other image, by position.
        wrong_sizes: How many of these have another size.
    """

    names: Mapping[int, str]
    indices: tuple[int, ...]
    pixels: "Tensor | None"
    unreadable: Mapping[int, str] = field(default_factory=dict)
    wrong_sizes: int = 0


def find_images(sources: Sequence[Path]) -> list[Path]:
    """Return the given files, and the images below the given folders in sorted order.

    A name with `*`, `?` or `[` that does not exist is a pattern; `**` stands for any folders.
    """
    from driftproof.data.folder import image_files

    paths: list[Path] = []
    for source in sources:
        if not source.exists() and glob.has_magic(str(source)):
            matches = sorted(Path(match) for match in glob.glob(str(source), recursive=True))  # noqa: PTH207  # absolute
            below = [path for match in matches for path in (image_files(match) if match.is_dir() else [match])]
        elif not source.exists() and not source.is_symlink():
            raise InputError(f"Expected {source} to be an image or a folder of images, but it does not exist.")
        else:
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
    if not order:
        return
    with ThreadPoolExecutor(max_workers=1) as loader, make_decoders() as decoders:

        def load(start: int) -> LoadedBatch:
            chosen = order[start : start + batch_size]
            return load_frames({index: Frame.from_path(paths[index]) for index in chosen}, size, decoders)

        pending = loader.submit(load, 0)
        for start in range(batch_size, len(order), batch_size):
            batch = pending.result()
            pending = loader.submit(load, start)
            yield batch
        yield pending.result()


def make_decoders() -> ThreadPoolExecutor:
    """Return threads that decode images."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1))


def check_sizes(batch: LoadedBatch) -> None:
    """Raise `InputError` if fewer than half of the images of a batch have one size."""
    if batch.wrong_sizes > len(batch.indices):
        raise InputError(next(message for message in batch.unreadable.values() if "to have one size" in message))


def load_frames(frames: Mapping[int, Frame], size: "Size", decoders: Executor) -> LoadedBatch:
    """Decode the images of a batch.

    Args:
        frames: The images by position in the run.
        size: As in `driftproof.data.FileSet`.
        decoders: Threads that decode.
    """
    import numpy as np
    import torch

    names = {index: frame.name for index, frame in frames.items()}
    decoded = dict(zip(frames, decoders.map(partial(_decode, size=size), frames.values()), strict=True))
    images = {index: image for index, image in decoded.items() if not isinstance(image, str)}
    unreadable = {index: image for index, image in decoded.items() if isinstance(image, str)}
    if not images:
        return LoadedBatch(names, (), None, unreadable)
    ((shape, _),) = Counter(image.shape for image in images.values()).most_common(1)
    odd = [index for index, image in images.items() if image.shape != shape]
    for index in odd:
        height, width = images.pop(index).shape[:2]
        unreadable[index] = (
            f"Expected the images of a batch to have one size, {shape[0]}×{shape[1]}, but {names[index]} is "
            f"{height}×{width}. Pass `--size` to resize them."
        )
    pixels = torch.from_numpy(np.stack(list(images.values()))).permute(0, 3, 1, 2).contiguous()
    return LoadedBatch(names, tuple(images), pixels, unreadable, len(odd))


def _decode(frame: Frame, size: "Size") -> "npt.NDArray[np.uint8] | str":
    """Return the pixels of an image, (H, W, 3), or why there are none."""
    import numpy as np

    from driftproof.data.images import decode_image, resize_image

    if frame.error is not None:
        return frame.error
    try:
        if frame.image is not None:
            return np.array(resize_image(frame.name, frame.image, size))
        return decode_image(frame.path, size=size)
    except InputError as error:
        return str(error)
