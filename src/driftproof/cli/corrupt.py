"""`driftproof corrupt`: a corrupted version of any image set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.cli.completion import CORRUPTIONS
from driftproof.cli.device import Device, resolve_device
from driftproof.cli.progress import progress_bar
from driftproof.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from driftproof.corruptions import FrostPhotos
    from driftproof.data import Corrupted, ImageSet

__all__ = ["corrupt_command"]


def corrupt_command(
    source: Annotated[Path, typer.Argument(help="An official data set, an array folder or a folder of images.")],
    destination: Annotated[Path, typer.Argument(help="Where the corrupted version goes.")],
    corruption: Annotated[
        list[str] | None,
        typer.Option(help="Which, repeatable; the fifteen if not said.", autocompletion=lambda: list(CORRUPTIONS)),
    ] = None,
    severity: Annotated[list[int] | None, typer.Option(help="From 1 to 5, repeatable; 5 if not said.")] = None,
    stack: Annotated[bool, typer.Option(help="All severities, and one file per corruption as in CIFAR-10-C.")] = False,
    size: Annotated[int | None, typer.Option(min=1, help="Scale files to squares of this side first.")] = None,
    frost: Annotated[Path | None, typer.Option(help="Folder of frost photos.")] = None,
    procedural: Annotated[bool, typer.Option("--procedural-frost", help="Use made-up frost; results say so.")] = False,
    device: Device = "cpu",
) -> None:
    """Make a corrupted version of an image set; what is there already is kept, so an interrupted run goes on."""
    from driftproof import corruptions
    from driftproof.data import Corrupted, open_dataset

    names, severities = corruption or list(corruptions.CORRUPTIONS), [1, 2, 3, 4, 5] if stack else severity or [5]
    for name in names:
        for level in severities:
            corruptions.check_corruption(name, level)
    place = resolve_device(device)
    clean = open_dataset(source, size=None if size is None else (size, size))
    photos = _load_frost_photos(names, frost, procedural)
    _check_same_labels(clean, destination / "labels.npy")
    destination.mkdir(parents=True, exist_ok=True)
    with progress_bar() as progress:
        for name in names:
            for level in severities:
                _write(Corrupted(clean, name, level, frost_photos=photos, device=place), destination, progress)
    _finish(clean, names, destination, stack)


def _check_same_labels(clean: "ImageSet", path: Path) -> None:
    """Refuse to put a set beside others whose labels would be replaced by its own."""
    import numpy as np

    from driftproof.data import FileSet
    from driftproof.data.folder import load_array

    if isinstance(clean, FileSet) or not path.exists():
        return
    found, own = load_array(path), clean.labels.numpy()
    if not any(np.array_equal(found, labels) for labels in (own, np.tile(own, 5))):
        raise InputError(
            f"Expected {path} to hold the labels of {clean.name}, but it holds others. Choose a new folder."
        )


def _load_frost_photos(names: list[str], folder: Path | None, procedural: bool) -> "FrostPhotos | None":
    from driftproof.corruptions import find_frost_photos, procedural_frost

    if "frost" not in names:
        return None
    return procedural_frost() if procedural else find_frost_photos(folder)


def _write(images: "Corrupted", destination: Path, progress: "Progress") -> None:
    from driftproof.data import FileSet, cache_to_disk, write_files

    task = progress.add_task(f"{images.corruption} {images.severity}", total=len(images))
    write = write_files if isinstance(images.clean, FileSet) else cache_to_disk
    write(images, destination, progress=lambda _, done: progress.update(task, completed=done))
    progress.update(task, completed=len(images))


def _finish(clean: "ImageSet", names: list[str], destination: Path, stack: bool) -> None:
    """Add what belongs beside the arrays; a folder of files is whole without."""
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
