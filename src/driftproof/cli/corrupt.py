"""`driftproof corrupt`: write a corrupted version of an image set."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from driftproof.cli.completion import CORRUPTIONS
from driftproof.cli.device import Device, resolve_device
from driftproof.cli.progress import progress_bar
from driftproof.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from driftproof.corruptions import FrostPhotos
    from driftproof.data import Corrupted, ImageSet
    from driftproof.data.corrupted_files import FileFormat

__all__ = ["corrupt_command"]


def corrupt_command(
    source: Annotated[Path, typer.Argument(help="Official data set, array folder or folder of images.")],
    destination: Annotated[Path, typer.Argument(help="Output folder.")],
    corruption: Annotated[
        list[str] | None,
        typer.Option(help="Corruption; repeatable. All fifteen by default.", autocompletion=lambda: list(CORRUPTIONS)),
    ] = None,
    severity: Annotated[list[int] | None, typer.Option(help="Severity from 1 to 5; repeatable. 5 by default.")] = None,
    stack: Annotated[
        bool, typer.Option(help="Write all severities in one file per corruption, as in CIFAR-10-C.")
    ] = False,
    size: Annotated[int | None, typer.Option(min=1, help="Resize image files to squares of this side.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Corrupt only the first images, this many.")] = None,
    file_format: Annotated[
        Literal["auto", "jpeg", "png"],
        typer.Option(
            "--format",
            help="Kind of image files. auto: JPEG if all source files are JPEG with a shorter side of at least 128 "
            "pixels, else PNG.",
        ),
    ] = "auto",
    frost: Annotated[Path | None, typer.Option(help="Folder of frost photos.")] = None,
    procedural: Annotated[
        bool, typer.Option("--procedural-frost", help="Use procedural frost; results say so.")
    ] = False,
    device: Device = "cpu",
) -> None:
    """Write a corrupted version of an image set; existing output is kept, so an interrupted run resumes.

    Arrays stay arrays. Folders of images become PNG or JPEG files. JPEG of quality 85 is how ImageNet-C and
    Tiny-ImageNet-C are stored, and a corruption of its own: on 32-pixel images it takes the error of BN Adapt under
    contrast from 21.0 to 48.8 %. Use `--format jpeg` on small images only to reproduce such a data set.
    """
    from driftproof import corruptions
    from driftproof.data import Corrupted, open_dataset

    names, severities = corruption or list(corruptions.CORRUPTIONS), [1, 2, 3, 4, 5] if stack else severity or [5]
    for name in names:
        for level in severities:
            corruptions.check_corruption(name, level)
    target = resolve_device(device)
    clean = _first_images(open_dataset(source, size=None if size is None else (size, size)), limit)
    photos = _load_frost_photos(names, frost, procedural)
    _check_same_labels(clean, destination / "labels.npy")
    destination.mkdir(parents=True, exist_ok=True)
    with progress_bar() as progress:
        for name in names:
            for level in severities:
                corrupted = Corrupted(clean, name, level, frost_photos=photos, device=target)
                _write(corrupted, destination, file_format, progress)
    _finish(clean, names, destination, stack)


def _first_images(images: "ImageSet", limit: int | None) -> "ImageSet":
    """Return the first images; files stay files, so that they are written as files."""
    from driftproof.data import FileSet, Subset

    if limit is None or limit >= len(images):
        return images
    if not isinstance(images, FileSet):
        return Subset(images, range(limit))
    labels = images.labels[:limit]
    return FileSet(
        images.paths[:limit], labels, size=images.size, classes=images.classes, name=images.name, root=images.root
    )


def _check_same_labels(clean: "ImageSet", path: Path) -> None:
    """Raise `InputError` if the folder holds the labels of another set."""
    import numpy as np

    from driftproof.data import FileSet
    from driftproof.data.npy_file import load_array

    if isinstance(clean, FileSet) or not path.exists():
        return
    found, own = load_array(path), clean.labels.numpy()
    if not any(np.array_equal(found, labels) for labels in (own, np.tile(own, 5))):
        raise InputError(f"Expected {path} to hold the labels of {clean.name}, but it holds others. Use a new folder.")


def _load_frost_photos(names: list[str], folder: Path | None, procedural: bool) -> "FrostPhotos | None":
    from driftproof.corruptions import find_frost_photos, procedural_frost

    if "frost" not in names:
        return None
    return procedural_frost() if procedural else find_frost_photos(folder)


def _write(images: "Corrupted", destination: Path, file_format: "FileFormat", progress: "Progress") -> None:
    from driftproof.data import FileSet, cache_to_disk, write_files

    task = progress.add_task(f"{images.corruption} {images.severity}", total=len(images))
    write = partial(write_files, file_format=file_format) if isinstance(images.clean, FileSet) else cache_to_disk
    write(images, destination, progress=lambda _, done: progress.update(task, completed=done))
    progress.update(task, completed=len(images))


def _finish(clean: "ImageSet", names: list[str], destination: Path, stack: bool) -> None:
    """Write the labels, and the joined arrays if asked for; folders of files need neither."""
    import numpy as np

    from driftproof.data import FileSet, stack_severities
    from driftproof.files import atomic_write

    if isinstance(clean, FileSet):
        return
    if stack:
        for name in names:
            stack_severities(clean, name, destination)
        return
    with atomic_write(destination / "labels.npy") as unfinished, unfinished.open("wb") as file:
        np.save(file, clean.labels.numpy())
