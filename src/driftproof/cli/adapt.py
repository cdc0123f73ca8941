"""`driftproof adapt`: adapt your own model to your own images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from driftproof.cli.class_names import parse_classes
from driftproof.cli.device import Device, move_model, resolve_device
from driftproof.cli.exit_codes import ExitCode
from driftproof.cli.guards import GuardNames, build_guarded
from driftproof.cli.images import find_images, load_batches
from driftproof.cli.labels import LabelSource, read_labels
from driftproof.cli.model import Classes, ModelName, Weights, load_model
from driftproof.cli.options import MethodName, MethodOptions, parse_method_options
from driftproof.cli.order import OrderName, OrderSeed, arrange
from driftproof.cli.predict import RowMaker, predict, predicted_classes
from driftproof.cli.prediction_rows import Row, make_columns, open_writer
from driftproof.cli.preprocessing import Crop, Mean, Preset, Side, Std, resolve_preprocessing
from driftproof.cli.progress import progress_bar
from driftproof.cli.run_summary import RunSummary, count_of
from driftproof.cli.source_folder import load_or_prepare
from driftproof.errors import ConfigurationError

if TYPE_CHECKING:
    from driftproof.alarm import Alarm

__all__ = ["adapt_command"]


def adapt_command(
    images: Annotated[list[Path], typer.Argument(help="Image files and folders of images.")],
    out: Annotated[Path, typer.Option(help="Output file for the predictions: .parquet, .csv or .jsonl.")],
    model: ModelName = None,
    weights: Weights = None,
    classes: Classes = None,
    preset: Preset = None,
    mean: Mean = None,
    std: Std = None,
    size: Side = None,
    crop: Crop = None,
    method: MethodName = "adapt",
    option: MethodOptions = None,
    guard: GuardNames = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of images per step.")] = 200,
    order: OrderName = "random",
    seed: OrderSeed = 0,
    source: Annotated[
        Path | None, typer.Option(help="Training images of the model, one folder per class; some methods need them.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="File to load the adapter's state from, if it exists, and to save it to at the end."),
    ] = None,
    labels: LabelSource = None,
    top_k: Annotated[int, typer.Option(min=1, help="List so many of the most likely classes.")] = 1,
    alarm: Annotated[float | None, typer.Option(help="Novelty threshold of the alarm.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Output page with the images that were refused or raised alarms: .html.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Adapt a model to images and write one row per image: class, probability, novelty, selected, quarantined, alarm.

    The images are gone through in a random order and the rows are in the folder's order. The model gets RGB images in
    0..1, normalized if a preset or a mean is given. A loaded state brings its own learning rate. Images that cannot be
    read are reported and skipped; the exit code is 1 then, and the other predictions are written.
    """
    paths, options, target = find_images(images), parse_method_options(option), resolve_device(device)
    preprocessing = resolve_preprocessing(preset, mean=mean, std=std, size=size, crop=crop)
    _, names = parse_classes(classes)
    known = None if labels is None else read_labels(labels, paths, names, images)
    maker = RowMaker(paths, names, top_k, known, None if alarm is None else _make_alarm(alarm))
    _check_state_file(state, out)
    rows: dict[int, Row] = {}
    summary, unreadable = RunSummary(), 0
    columns = make_columns(names=bool(names), top_k=top_k, labels=known is not None)
    with open_writer(out, columns) as write, progress_bar() as progress:
        network = move_model(load_model(model, weights, classes, preprocessing), target)
        adapter = build_guarded(method, network, options, guard)
        load_or_prepare(adapter, source, preprocessing.size, progress, state)
        task = progress.add_task("adapting", total=len(paths))
        for batch in load_batches(paths, arrange(paths, order, seed), batch_size=batch_size, size=preprocessing.size):
            for message in batch.unreadable:
                progress.console.print(Text(message), soft_wrap=True)
            unreadable += len(batch.unreadable)
            if batch.pixels is not None:
                logits, record = predict(adapter, batch.pixels)
                rows.update(zip(batch.indices, maker.rows(batch.indices, logits, record), strict=True))
                truth = None if known is None else [known.values[index] for index in batch.indices]
                summary.add(record, predicted_classes(logits), truth)
            progress.advance(task, len(batch.indices) + len(batch.unreadable))
        write([rows[index] for index in sorted(rows)])
    # Saved last: if anything fails, the same command starts again from the old state.
    if state is not None:
        adapter.save(state)
    alarms = sum(row[list(columns).index("alarm")] is True for row in rows.values())
    _print_summary(out, summary, alarms, unreadable)
    if report is not None:
        _write_pictures(report, list(columns), {paths[index]: row for index, row in rows.items()}, summary, method)
    if unreadable:
        raise typer.Exit(ExitCode.NEGATIVE)


def _make_alarm(threshold: float) -> "Alarm":
    from driftproof.alarm import Alarm

    return Alarm(threshold)


def _check_state_file(state: Path | None, out: Path) -> None:
    if state is not None:
        if state.resolve() == out.resolve():
            raise ConfigurationError(f"Expected `--state` and `--out` to be different files, but both are {out}.")
        state.parent.mkdir(parents=True, exist_ok=True)


def _write_pictures(out: Path, columns: list[str], rows: dict[Path, Row], summary: RunSummary, method: str) -> None:
    """Write a page of the images that the steps did not learn from, that were quarantined, or that raised alarms."""
    from driftproof.report.pictures import Picture, write_pictures

    groups: dict[str, list[Picture]] = {"Alarms": [], "Quarantined": [], "Refused: not learned from": []}
    for path, row in rows.items():
        cells = dict(zip(columns, row, strict=True))
        novelty = cells["novelty"]
        predicted = cells.get("class", cells["predicted"])
        picture = Picture(
            path,
            f"{predicted}, novelty {novelty:.3g}" if isinstance(novelty, float) else "no prediction",
            novelty if isinstance(novelty, float) else float("inf"),
        )
        chosen = (cells["alarm"], cells["quarantined"], summary.selected and not cells["selected"])
        for group, is_member in zip(groups.values(), chosen, strict=True):
            group.extend([picture] * bool(is_member))
    facts = {"Images": str(summary.images), "Method": method, "Learned from": str(summary.selected)}
    state = f"The run ended {summary.state}." if summary.state else "Health was not measured."
    shown = {heading: pictures for heading, pictures in groups.items() if pictures}
    typer.echo(write_pictures(shown, out, title=f"Images seen by {method}", summary=state, facts=facts), err=True)


def _print_summary(out: Path, summary: RunSummary, alarms: int, unreadable: int) -> None:
    parts = [count_of(summary.images, "prediction"), f"{summary.selected} learned from", count_of(alarms, "alarm")]
    parts += [f"{count_of(count, 'batch')} without a step ({reason})" for reason, count in summary.skipped.items()]
    typer.echo(f"{out}: {', '.join([*parts, f'{unreadable} unreadable'])}", err=True)
    for line in summary.lines():
        typer.echo(line, err=True)
