"""`driftproof adapt`: adapt a model of one's own over images of one's own."""

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
    images: Annotated[list[Path], typer.Argument(help="Images, and folders of them, which are taken in sorted order.")],
    out: Annotated[Path, typer.Option(help="Where the predictions go: a .parquet, .csv or .jsonl file.")],
    model: ModelName = None,
    weights: Weights = None,
    classes: ClassCount = None,
    method: MethodName = "tent+crowd",
    option: MethodOptions = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step.")] = 200,
    size: Annotated[int | None, typer.Option(min=1, help="Scale images to squares of this side first.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="Images the model was trained on, one folder per class; some methods need them.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Go on from this file if it is there, with its learning rate too; save to it at the end."),
    ] = None,
    alarm: Annotated[float | None, typer.Option(help="Novelty above this is an alarm.")] = None,
    device: Device = "cpu",
) -> None:
    """Adapt a model over images, and write a row for each: class, probability, novelty, selected, alarm.

    The model gets RGB images in 0..1 and has to normalize them itself. Images that cannot be read are named and left
    out; the status is 1 then, and the other predictions are written all the same.
    """
    from driftproof.alarm import Alarm
    from driftproof.bench.methods import build_method

    paths, options, place = find_images(images), parse_method_options(option), resolve_device(device)
    summary = _Summary()
    if state is not None:
        if state.resolve() == out.resolve():
            raise ConfigurationError(f"Expected `--state` and `--out` to be two files, but both are {out}.")
        state.parent.mkdir(parents=True, exist_ok=True)
    with open_writer(out) as write, progress_bar() as progress:
        adapter = build_method(method, load_model(model, weights, classes).to(place), options)
        _load_or_prepare(adapter, source, size, state, progress)
        task = progress.add_task("adapting", total=len(paths))
        for reading in load_batches(paths, batch_size=batch_size, size=size):
            for complaint in reading.unreadable:
                progress.console.print(Text(complaint), soft_wrap=True)
            rows = _rows(adapter, reading, None if alarm is None else Alarm(alarm))
            write(rows)
            summary.add(rows, reading, adapter)
            progress.advance(task, len(rows) + len(reading.unreadable))
    # Last: should this fail, the same command starts from the same state again.
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

    def add(self, rows: Sequence[PredictionRow], reading: LoadedBatch, adapter: "Adapter") -> None:
        self.predicted += len(rows)
        self.selected += sum(row.selected for row in rows)
        self.alarms += sum(row.alarm is True for row in rows)
        self.unreadable += len(reading.unreadable)
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
    """Go on from the state if there is one, which knows what was learned from source images; else learn it now."""
    if state is not None and state.exists():
        adapter.load(state)
    if not adapter.prepared:
        _prepare(adapter, source, size, progress)


def _prepare(adapter: "Adapter", source: Path | None, size: int | None, progress: "Progress") -> None:
    if source is None:
        raise ConfigurationError(
            "Expected `--source`, since this method learns from source images before the first batch. "
            "Name a folder of them, one sub-folder per class."
        )
    images = SourceFolder(source, size=size)
    check_class_count(adapter, images)
    task = progress.add_task("preparing", total=None)
    adapter.prepare(images, progress=lambda stage, done: progress.update(task, description=stage, completed=done))
    progress.remove_task(task)


def _rows(adapter: "Adapter", reading: LoadedBatch, alarm: "Alarm | None") -> list[PredictionRow]:
    if reading.pixels is None:
        return []
    logits = adapter(reading.pixels.to(adapter.device).float().div_(255))
    if logits.ndim != 2:
        raise ModelError(
            f"Expected one answer per image, but the model's logits are of shape {tuple(logits.shape)}. "
            "For segmentation there is `driftproof analyze scenes`."
        )
    record = adapter.last
    novelties = record.novelty + 0.0  # a difference of nothing without the sign of its subtraction
    alarming = None if alarm is None else {event.sample for event in alarm(novelties)}
    best = logits.softmax(dim=1).max(dim=1)
    columns = (best.indices.tolist(), best.values.tolist(), novelties.tolist(), record.selected.tolist())
    finite = logits.isfinite().all(dim=1).tolist()
    return [
        PredictionRow(
            _text(path),
            predicted if sound else None,
            probability if sound else None,
            novelty if sound else None,
            selected,
            None if alarming is None else index in alarming,
        )
        for index, (path, sound, predicted, probability, novelty, selected) in enumerate(
            zip(reading.paths, finite, *columns, strict=True)
        )
    ]


def _text(path: Path) -> str:
    # A name that is no valid text, which some file systems allow, would fit into no table.
    return str(path).encode(errors="backslashreplace").decode()
