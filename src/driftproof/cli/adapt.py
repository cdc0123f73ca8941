"""`driftproof adapt`: adapt your own model to your own images."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.cli.adapt_run import AdaptRun
from driftproof.cli.alarm_options import AlarmRate, AlarmThreshold, make_alarm, warn_about_rate
from driftproof.cli.class_names import parse_classes
from driftproof.cli.device import Device, move_model, resolve_device
from driftproof.cli.exit_codes import ExitCode
from driftproof.cli.guards import GuardNames, build_guarded
from driftproof.cli.images import find_images, load_batches
from driftproof.cli.labels import LabelSource, read_labels
from driftproof.cli.model import Classes, ModelName, Weights, load_model
from driftproof.cli.monitor_options import (
    EventLog,
    Live,
    LogFile,
    MonitorOptions,
    OpenTelemetryFlag,
    PrometheusPort,
    TensorBoardFolder,
    WebhookUrl,
    open_monitor,
)
from driftproof.cli.options import MethodName, MethodOptions, parse_method_options
from driftproof.cli.order import Order, OrderName, OrderSeed, arrange
from driftproof.cli.picture_page import write_picture_page
from driftproof.cli.predict import RowMaker
from driftproof.cli.prediction_rows import RowFile, check_format, make_columns, read_rows, sort_rows
from driftproof.cli.preprocessing import Crop, Mean, Preset, Side, Std, resolve_preprocessing
from driftproof.cli.progress import progress_bar
from driftproof.cli.run_folder import Plan, RunFolder, check_outputs_unused, describe_options
from driftproof.cli.run_summary import RunSummary, count_of
from driftproof.cli.source_folder import load_or_prepare
from driftproof.cli.sources import BatchSeconds, Follow, Idle, Settle, StreamOptions, open_arrivals, open_live_batches
from driftproof.cli.stop_signals import catch_stop_signals
from driftproof.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from driftproof.alarm import Alarm
    from driftproof.cli.arrivals import Arrivals
    from driftproof.cli.images import LoadedBatch
    from driftproof.cli.live_batches import LiveBatches
    from driftproof.cli.snapshots import Checkpoint
    from driftproof.cli.stop_signals import StopRequest
    from driftproof.data.images import Size

__all__ = ["adapt_command"]


def adapt_command(
    context: typer.Context,
    images: Annotated[
        list[Path],
        typer.Argument(
            help="Image and video files, folders of images, patterns; `-` reads names of image files from stdin."
        ),
    ],
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
    alarm: AlarmThreshold = None,
    alarm_rate: AlarmRate = None,
    report: Annotated[
        Path | None, typer.Option(help="Output page with the images that were refused or raised alarms: .html.")
    ] = None,
    follow: Follow = False,
    batch_seconds: BatchSeconds = None,
    idle: Idle = None,
    settle: Settle = 1.0,
    save_every: Annotated[int, typer.Option(min=1, help="Save the state for `--resume` after so many batches.")] = 10,
    keep: Annotated[int, typer.Option(min=1, help="Keep so many saved states, besides the last healthy one.")] = 2,
    log: LogFile = None,
    event_log: EventLog = None,
    webhook: WebhookUrl = None,
    prometheus: PrometheusPort = None,
    opentelemetry: OpenTelemetryFlag = False,
    tensorboard: TensorBoardFolder = None,
    live: Live = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was stopped; starts one if there is none.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output or an unfinished run.")] = False,
    device: Device = "cpu",
) -> None:
    """Adapt a model to images and write one row per image: class, probability, novelty, selected, quarantined, alarm.

    A fixed set of images is gone through in a random order, images that arrive and videos in theirs. Rows are written
    batch by batch; at the end those of a fixed set are put in the folder's order. The model gets RGB images in 0..1,
    normalized if a preset or a mean is given. A loaded state brings its own learning rate. Images without a prediction
    have a row that says why; the exit code is 1 then.
    """
    folder, options, target = RunFolder(out), parse_method_options(option), resolve_device(device)
    is_parquet, novelty_alarm = check_format(out) == ".parquet", make_alarm(alarm, alarm_rate)
    _check_state_file(state, out)
    check_outputs_unused(out, folder, resume=resume, force=force)
    preprocessing = resolve_preprocessing(preset, mean=mean, std=std, size=size, crop=crop)
    _, names = parse_classes(classes)
    settings = describe_options(context.params)
    stream = StreamOptions(follow, batch_seconds, idle, settle)
    monitoring = MonitorOptions(log, event_log, webhook, prometheus, opentelemetry, tensorboard, live)
    arrivals = open_arrivals(images, stream, _list_fixed_only(context))
    with folder.locked(), progress_bar() as progress:
        if resume and (folder.is_complete or (out.exists() and not folder.has_begun)):
            folder.clear()
            typer.echo(f"{out}: complete, nothing to resume", err=True)
            return
        is_resumed = resume and folder.snapshots.exist
        plan = folder.read_plan(settings) if is_resumed else _make_plan(settings, images, arrivals, order, seed)
        known = None if labels is None else read_labels(labels, plan.paths, names, images)
        maker = RowMaker(names, top_k, known, novelty_alarm)
        columns = make_columns(names=bool(names), top_k=top_k, labels=known is not None)
        network = move_model(load_model(model, weights, classes, preprocessing), target)
        adapter = build_guarded(method, network, options, guard)
        warn_about_rate(adapter, novelty_alarm)
        checkpoint = None
        if is_resumed:
            checkpoint, is_older = folder.snapshots.load(adapter, novelty_alarm)
            if is_older:
                typer.echo(
                    f"warning: the newest state is damaged: going on after {checkpoint.batches} batches", err=True
                )
        else:
            load_or_prepare(adapter, source, preprocessing.size, progress, state, novelty_alarm)
        rows = RowFile(folder.rows if is_parquet else out, columns, checkpoint.length if checkpoint else 0)
        with open_monitor(monitoring, progress) as monitor, catch_stop_signals() as stop:
            run = AdaptRun(adapter, plan, folder, rows, maker, monitor, checkpoint, keep)
            monitor.num_batches = run.num_batches
            monitor.notify("run", "the run goes on" if is_resumed else "the run begins", out=str(out), method=method)
            live_batches = partial(open_live_batches, arrivals, stream) if arrivals is not None else None
            batches = _open_batches(run, checkpoint, live_batches, stop, batch_size, preprocessing.size)
            if not run.run(batches, save_every, stop, progress):
                monitor.notify("run", "the run was stopped", images=run.num_images)
                _print_stopped(out, run)
                raise typer.Exit(stop.exit_code)
            if arrivals is not None and (rest := arrivals.describe_rest()) is not None:
                typer.echo(f"warning: {rest}", err=True)
            if arrivals is None or is_parquet:
                sort_rows(rows, out, folder.path)
            # Saved after the rows: a run that fails before starts again from the old state.
            if state is not None:
                adapter.save(state, alarm=novelty_alarm)
            if report is not None:
                by_path = {plan.paths[int(row[0] or 0)]: row for row in read_rows(rows.path, columns)}
                typer.echo(write_picture_page(report, columns, by_path, run.summary, method), err=True)
            run.mark_complete()
            folder.clear()
            monitor.notify("run", "the run is complete", images=run.num_images)
    _print_summary(out, run.summary, novelty_alarm)
    if run.summary.unpredicted:
        raise typer.Exit(ExitCode.NEGATIVE)


def _list_fixed_only(context: typer.Context) -> list[str]:
    names = ("order", "seed", "labels", "report")
    sources = {name: context.get_parameter_source(name) for name in names}
    return [f"`--{name}`" for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def _make_plan(
    settings: dict[str, str], images: "Sequence[Path]", arrivals: "Arrivals | None", order: Order, seed: int
) -> Plan:
    paths = find_images(images) if arrivals is None else []
    return Plan(settings, paths, arrange(paths, order, seed))


def _open_batches(
    run: AdaptRun,
    checkpoint: "Checkpoint | None",
    live_batches: "Callable[..., LiveBatches] | None",
    stop: "StopRequest",
    batch_size: int,
    size: "Size",
) -> "Iterable[LoadedBatch]":
    """Return the batches that are left."""
    if checkpoint is not None and checkpoint.stage != "running":
        return ()
    if live_batches is None:
        return load_batches(run.plan.paths, run.plan.order[run.num_images :], batch_size=batch_size, size=size)
    return live_batches(
        batch_size=batch_size, size=size, stop=stop, folder=run.folder, rows=run.rows, checkpoint=checkpoint
    )


def _check_state_file(state: Path | None, out: Path) -> None:
    if state is not None:
        if state.resolve() == out.resolve():
            raise ConfigurationError(f"Expected `--state` and `--out` to be different files, but both are {out}.")
        state.parent.mkdir(parents=True, exist_ok=True)


def _print_stopped(out: Path, run: AdaptRun) -> None:
    typer.echo(
        f"{out}: stopped after {run.num_images if run.total is None else f'{run.num_images} of {run.total}'} images, "
        "rows and state are saved. Go on with the same command and `--resume`.",
        err=True,
    )


def _print_summary(out: Path, summary: RunSummary, alarm: "Alarm | None") -> None:
    parts = [
        count_of(summary.images, "prediction"),
        f"{summary.selected} learned from",
        count_of(summary.alarms, "alarm"),
        *(f"{count_of(count, 'batch')} without a step ({reason})" for reason, count in summary.skipped.items()),
        f"{summary.unpredicted} unreadable",
    ]
    typer.echo(f"{out}: {', '.join(parts)}", err=True)
    for line in summary.lines():
        typer.echo(line, err=True)
    if alarm is not None and alarm.rate is not None and alarm.num_missing:
        typer.echo(
            f"warning: the alarm needs {alarm.num_missing:,} more images to tell known ones from unknown ones: so far "
            f"it flagged about {100 * alarm.rate:g}% of all.",
            err=True,
        )
