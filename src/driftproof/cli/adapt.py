"""`driftproof adapt`: adapt your own model to your own images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from driftproof.cli.device import Device, resolve_device
from driftproof.cli.exit_codes import ExitCode
from driftproof.cli.images import LoadedBatch, find_images, load_batches
from driftproof.cli.model import ClassCount, ModelName, Weights, load_model
from driftproof.cli.options import MethodName, MethodOptions, parse_method_options
from driftproof.cli.prediction_rows import PredictionRow, open_writer
from driftproof.cli.progress import progress_bar
from driftproof.cli.source_folder import SourceFolder, check_class_count
from driftproof.errors import ConfigurationError, ModelError

if TYPE_CHECKING:
    from rich.progress import Progress

    from driftproof.adapter import Adapter
    from driftproof.alarm import Alarm

__all__ = ["adapt_command"]


def adapt_command(
    images: Annotated[
        list[Path], typer.Argument(help="Image files and folders; the images of a folder are sorted by name.")
    ],
    out: Annotated[Path, typer.Option(help="Output file for the predictions: .parquet, .csv or .jsonl.")],
    model: ModelName = None,
    weights: Weights = None,
    classes: ClassCount = None,
    method: MethodName = "tent+crowd",
    option: MethodOptions = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of images per step.")] = 200,
    size: Annotated[int | None, typer.Option(min=1, help="Resize images to squares of this side.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="Training images of the model, one folder per class; some methods need them.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="File to load the adapter's state from, if it exists, and to save it to at the end."),
    ] = None,
    alarm: Annotated[float | None, typer.Option(help="Novelty threshold of the alarm.")] = None,
    device: Device = "cpu",
) -> None:
    """Adapt a model to images and write one row per image: class, probability, novelty, selected, alarm.

    The model gets RGB images in 0..1 and has to normalize them itself. A loaded state brings its own learning rate.
    Images that cannot be read are reported and skipped; the exit code is 1 then, and the other predictions are written.
    """
    from driftproof.alarm import Alarm
    from driftproof.bench.methods import build_method

    paths, options, target = find_images(images), parse_method_options(option), resolve_device(device)
    summary = _Summary()
    if state is not None:
        if state.resolve() == out.resolve():
            raise ConfigurationError(f"Expected `--state` and `--out` to be different files, but both are {out}.")
        state.parent.mkdir(parents=True, exist_ok=True)
    with open_writer(out) as write, progress_bar() as progress:
        adapter = build_method(method, load_model(model, weights, classes).to(target), options)
        _load_or_prepare(adapter, source, size, state, progress)
        task = progress.add_task("adapting", total=len(paths))
        for batch in load_batches(paths, batch_size=batch_size, size=size):
            for message in batch.unreadable:
                progress.console.print(Text(message), soft_wrap=True)
            rows = _predict(adapter, batch, None if alarm is None else Alarm(alarm))
            write(rows)
            summary.add(rows, batch, adapter)
            progress.advance(task, len(rows) + len(batch.unreadable))
    # Saved last: if anything fails, the same command starts again from the old state.
    if state is not None:
        adapter.save(state)
    typer.echo(f"{out}: {summary}", err=True)
    if summary.unreadable:
        raise typer.Exit(ExitCode.NEGATIVE)


@dataclass
class _Summary:
    predicted: int = 0
    selected: int = 0
    alarms: int = 0
    unreadable: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, rows: Sequence[PredictionRow], batch: LoadedBatch, adapter: "Adapter") -> None:
        self.predicted += len(rows)
        self.selected += sum(row.selected for row in rows)
        self.alarms += sum(row.alarm is True for row in rows)
        self.unreadable += len(batch.unreadable)
        if rows and adapter.last.skipped is not None:
            self.skipped[adapter.last.skipped] += 1

    def __str__(self) -> str:
        counts = {"predictions": self.predicted, "learned from": self.selected, "alarms": self.alarms}
        parts = [f"{count} {what}" for what, count in counts.items()]
        parts += [f"{count} batches without a step ({reason})" for reason, count in self.skipped.items()]
        return ", ".join([*parts, f"{self.unreadable} unreadable"])


def _load_or_prepare(
    adapter: "Adapter", source: Path | None, size: int | None, state: Path | None, progress: "Progress"
) -> None:
    """Load the saved state, which includes the preparation, or prepare the adapter on source images."""
    if state is not None and state.exists():
        adapter.load(state)
    if not adapter.prepared:
        _prepare(adapter, source, size, progress)


def _prepare(adapter: "Adapter", source: Path | None, size: int | None, progress: "Progress") -> None:
    if source is None:
        raise ConfigurationError(
            "Expected `--source`, since this method has to be prepared on source images. "
            "Pass a folder with one sub-folder per class."
        )
    images = SourceFolder(source, size=size)
    check_class_count(adapter, images)
    task = progress.add_task("preparing", total=None)
    adapter.prepare(images, progress=lambda stage, done: progress.update(task, description=stage, completed=done))
    progress.remove_task(task)


def _predict(adapter: "Adapter", batch: LoadedBatch, alarm: "Alarm | None") -> list[PredictionRow]:
    if batch.pixels is None:
        return []
    logits = adapter(batch.pixels.to(adapter.device).float().div_(255))
    if logits.ndim != 2:
        raise ModelError(
            f"Expected a classifier with logits of shape (N, C), but got shape {tuple(logits.shape)}. "
            "For segmentation use `driftproof analyze scenes`."
        )
    record = adapter.last
    novelties = record.novelty + 0.0  # turns −0.0 into 0.0
    alarmed = None if alarm is None else {event.sample for event in alarm(novelties)}
    best = logits.softmax(dim=1).max(dim=1)
    columns = (best.indices.tolist(), best.values.tolist(), novelties.tolist(), record.selected.tolist())
    finite = logits.isfinite().all(dim=1).tolist()
    return [
        PredictionRow(
            _printable(path),
            predicted if is_finite else None,
            probability if is_finite else None,
            novelty if is_finite else None,
            selected,
            None if alarmed is None else index in alarmed,
        )
        for index, (path, is_finite, predicted, probability, novelty, selected) in enumerate(
            zip(batch.paths, finite, *columns, strict=True)
        )
    ]


def _printable(path: Path) -> str:
    # File names may contain bytes that are not valid UTF-8, which no table format can store.
    return str(path).encode(errors="backslashreplace").decode()
