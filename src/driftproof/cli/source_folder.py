"""Source images, for methods that are prepared on them."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from driftproof.errors import ConfigurationError, InputError, StateError

if TYPE_CHECKING:
    from rich.progress import Progress

    from driftproof.adapter import Adapter
    from driftproof.alarm import Alarm
    from driftproof.data import LabeledBatches
    from driftproof.data.images import Size

__all__ = ["load_or_prepare"]


def _read_folder(root: Path, size: "Size") -> "LabeledBatches":
    from driftproof.data import LabeledBatches, folder

    images = folder(root, size=size)
    if not images.classes:
        raise InputError(f"Expected {root} to hold one sub-folder per class, but it holds loose images.")
    return LabeledBatches(images)


def _check_class_count(adapter: "Adapter", source: "LabeledBatches") -> None:
    """Raise `InputError` if the folder does not have one class per model output."""
    import torch

    with torch.no_grad():
        first = source.images.batch([0]).to(adapter.device).float() / 255
        outputs = adapter.network.with_source_statistics()(first).shape[1]
    if len(source.images.classes) != outputs:
        raise InputError(
            f"Expected one sub-folder in {source.images.name} for each of the model's {outputs} classes, "
            f"but got {len(source.images.classes)}."
        )


def load_or_prepare(
    adapter: "Adapter",
    source: Path | None,
    size: "Size",
    progress: "Progress",
    state: Path | None = None,
    alarm: "Alarm | None" = None,
) -> None:
    """Load the saved state, which includes the preparation, or prepare the adapter on source images.

    Args:
        adapter: The adapter.
        source: Folder of source images; None if there are none.
        size: Size of the images, as in `driftproof.data.FileSet`.
        progress: Shows the preparation.
        state: File of a saved state; it need not exist.
        alarm: An alarm that continues with the state, if it was saved with one of the same options.
    """
    if state is not None and state.exists():
        _load(adapter, state, alarm)
    if not adapter.prepared:
        _prepare(adapter, source, size, progress)


def _load(adapter: "Adapter", state: Path, alarm: "Alarm | None") -> None:
    try:
        adapter.load(state, alarm=alarm)
    except StateError as error:
        adapter.load(state)  # unless the state does not fit either
        if alarm is not None and alarm.rate is not None:
            typer.echo(f"warning: the alarm begins anew: {error}", err=True)


def _prepare(adapter: "Adapter", source: Path | None, size: "Size", progress: "Progress") -> None:
    if source is None:
        raise ConfigurationError(
            "Expected `--source`, since this method has to be prepared on source images. "
            "Pass a folder with one sub-folder per class."
        )
    images = _read_folder(source, size)
    _check_class_count(adapter, images)
    task = progress.add_task("preparing", total=None)
    adapter.prepare(images, progress=lambda stage, done: progress.update(task, description=stage, completed=done))
    progress.remove_task(task)
