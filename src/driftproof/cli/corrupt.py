"""`driftproof corrupt`: a corrupted version of any image set."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import TaskID

from driftproof.cli.progress import counting
from driftproof.corruptions import CORRUPTIONS, FrostPhotos, find_frost_photos, procedural_frost
from driftproof.data import Corrupted, FileSet, kept, opened, stacked, write_files
from driftproof.files import written_whole

__all__ = ["corrupt_command"]


def corrupt_command(
    source: Annotated[Path, typer.Argument(help="An official data set, an array folder or a folder of images.")],
    destination: Annotated[Path, typer.Argument(help="Where the corrupted version goes.")],
    corruption: Annotated[list[str] | None, typer.Option(help="Which, repeatable; the fifteen if not said.")] = None,
    severity: Annotated[list[int] | None, typer.Option(help="From 1 to 5, repeatable.")] = None,
    stack: Annotated[bool, typer.Option(help="All severities, and one file per corruption as in CIFAR-10-C.")] = False,
    size: Annotated[int | None, typer.Option(help="Scale files to squares of this side first.")] = None,
    frost: Annotated[Path | None, typer.Option(help="Folder of frost photos.")] = None,
    procedural: Annotated[bool, typer.Option("--procedural-frost", help="Use made-up frost; results say so.")] = False,
    device: Annotated[str, typer.Option(help="Where to compute, such as cuda.")] = "cpu",
) -> None:
    """Make a corrupted version of an image set; what is there already is kept, so an interrupted run goes on."""
    clean = opened(source, size=None if size is None else (size, size))
    names, severities = corruption or list(CORRUPTIONS), [1, 2, 3, 4, 5] if stack else severity or [5]
    photos = _photos(names, frost, procedural)
    destination.mkdir(parents=True, exist_ok=True)
    with counting() as progress:
        for name in names:
            for level in severities:
                images = Corrupted(clean, name, level, frost_photos=photos, device=device)
                task = progress.add_task(f"{name} {level}", total=len(images))

                def note(_: str, done: int, task: TaskID = task) -> None:
                    progress.update(task, completed=done)

                if isinstance(clean, FileSet):
                    write_files(images, destination, progress=note)
                else:
                    kept(images, destination, progress=note)
                progress.update(task, completed=len(images))
    if isinstance(clean, FileSet):
        return
    if stack:
        for name in names:
            stacked(clean, name, destination)
        return
    with written_whole(destination / "labels.npy") as unfinished, unfinished.open("wb") as file:
        np.save(file, clean.labels.numpy())


def _photos(names: list[str], folder: Path | None, procedural: bool) -> FrostPhotos | None:
    if "frost" not in names:
        return None
    return procedural_frost() if procedural else find_frost_photos(folder)
