"""`driftproof serve`: answer predictions over HTTP with a model that adapts."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from driftproof.cli.alarm_options import AlarmRate, AlarmThreshold, make_alarm, warn_about_rate
from driftproof.cli.class_names import parse_classes
from driftproof.cli.device import Device, move_model, resolve_device
from driftproof.cli.exit_codes import ExitCode
from driftproof.cli.guards import GuardNames, build_guarded
from driftproof.cli.model import Classes, ModelName, Weights, load_model
from driftproof.cli.monitor_options import (
    EventLog,
    LogFile,
    MonitorOptions,
    OpenTelemetryFlag,
    TensorBoardFolder,
    WebhookUrl,
    open_monitor,
)
from driftproof.cli.options import MethodName, MethodOptions, parse_method_options
from driftproof.cli.preprocessing import Crop, Mean, Preset, Side, Std, resolve_preprocessing
from driftproof.cli.progress import progress_bar
from driftproof.cli.source_folder import load_or_prepare
from driftproof.cli.stop_signals import catch_stop_signals
from driftproof.errors import ConfigurationError
from driftproof.files import check_writable
from driftproof.optional import require

__all__ = ["serve_command"]

_UNRESIZED_PIXELS = 2**18
"""Pixels of an image by default where it is not resized: the model sees all of them."""


def serve_command(
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
    source: Annotated[
        Path | None, typer.Option(help="Training images of the model, one folder per class; some methods need them.")
    ] = None,
    alarm: AlarmThreshold = None,
    alarm_rate: AlarmRate = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of images per step, at most.")] = 64,
    max_wait: Annotated[
        float, typer.Option(min=0.001, max=10, help="Seconds that an image waits for others of its batch.")
    ] = 0.01,
    state: Annotated[Path | None, typer.Option(help="File to save the adapter's state to.")] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Save the state after so many batches.")] = 50,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the state file; starts anew if there is none.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing state file.")] = False,
    follow: Annotated[
        Path | None,
        typer.Option(help="State file of another server: answer with it, reload it when it changes, learn nothing."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Further name that requests may be sent to; repeatable.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that guards downloading, uploading and resetting the state."),
    ] = None,
    page: Annotated[
        bool | None,
        typer.Option("--page/--no-page", help="Page with curves and alarms; by default only on loopback."),
    ] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log a line for each request.")] = False,
    max_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 8 * 2**20,
    max_images: Annotated[int, typer.Option(min=1, help="Images in a request.")] = 32,
    max_pixels: Annotated[
        int | None,
        typer.Option(min=1, help="Pixels of an image; by default 16,777,216, or 262,144 if it is not resized."),
    ] = None,
    max_pending: Annotated[int, typer.Option(min=1, help="Images that may wait for the model.")] = 256,
    max_connections: Annotated[int, typer.Option(min=1, help="Open connections.")] = 2000,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for a request.")] = 30.0,
    log: LogFile = None,
    event_log: EventLog = None,
    webhook: WebhookUrl = None,
    opentelemetry: OpenTelemetryFlag = False,
    tensorboard: TensorBoardFolder = None,
    device: Device = "cpu",
) -> None:
    """Serve predictions over HTTP; the model adapts to the images it is sent.

    `POST /predict` answers with class, probability, novelty, selected, alarm and health of each image. TERM, Ctrl-C and
    HUP end the server once the requests in flight are answered and the state is saved.
    """
    require("uvicorn", "Serving", "'driftproof[serve]'")
    from driftproof.serve.build import Settings, build_server
    from driftproof.serve.limits import Limits
    from driftproof.serve.security import read_token
    from driftproof.serve.server import open_socket, run_server

    novelty_alarm = make_alarm(alarm, alarm_rate)
    _check_state(state, follow, resume=resume, force=force)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("driftproof.serve.access").setLevel(logging.INFO if access_log else logging.WARNING)
    token = None if token_file is None else read_token(token_file)
    preprocessing, (_, names) = (
        resolve_preprocessing(preset, mean=mean, std=std, size=size, crop=crop),
        parse_classes(classes),
    )
    limits = Limits(
        max_bytes=max_bytes,
        max_images=max_images,
        max_pixels=max_pixels or (_UNRESIZED_PIXELS if preprocessing.size is None else Limits().max_pixels),
        max_pending=max_pending,
        max_connections=max_connections,
        seconds=timeout,
        header_seconds=min(timeout, Limits().header_seconds),
    )
    network = move_model(load_model(model, weights, classes, preprocessing), resolve_device(device))
    adapter = build_guarded(method, network, parse_method_options(option), guard)
    warn_about_rate(adapter, novelty_alarm)
    with progress_bar() as progress:
        if follow is None and not (resume and state is not None and state.exists()):
            load_or_prepare(adapter, source, preprocessing.size, progress)
    reports = MonitorOptions(log, event_log, webhook, None, opentelemetry, tensorboard)
    with _locked(state), open_monitor(reports, progress) as monitor, catch_stop_signals() as stop:
        settings = Settings(
            size=preprocessing.size,
            class_names=names,
            alarm=novelty_alarm,
            limits=limits,
            batch_size=batch_size,
            max_wait=max_wait,
            state=state,
            save_every=save_every,
            resume=resume,
            follow=follow,
            host=host,
            allow_hosts=tuple(allow_host or ()),
            token=token,
            page=page,
            monitor=monitor,
        )
        server = build_server(adapter, settings)
        listener = open_socket(host, port)
        monitor.notify("run", "the server started")
        started = run_server(server, listener, lambda address: typer.echo(f"Serving {method} at {address}", err=True))
        monitor.notify("run", "the server stopped")
    if not started:
        raise typer.Exit(ExitCode.USAGE_ERROR)
    if stop.number is not None:
        raise typer.Exit(stop.exit_code)


def _check_state(state: Path | None, follow: Path | None, *, resume: bool, force: bool) -> None:
    if follow is not None and state is not None:
        raise ConfigurationError("Expected `--state` or `--follow`, but got both. A server that follows saves nothing.")
    if resume and (state is None or force):
        raise ConfigurationError("Expected `--resume` with `--state` and without `--force`.")
    if state is not None:
        check_writable(state)
        if state.exists() and not resume and not force:
            raise ConfigurationError(
                f"Expected `--state` to be a new file, but {state} exists. Pass `--resume` to go on from it, or "
                "`--force` to replace it."
            )


@contextmanager
def _locked(state: Path | None) -> Iterator[None]:
    """Hold the state file; raise `ConfigurationError` if another server does."""
    from filelock import FileLock, Timeout

    if state is None:
        yield
        return
    try:
        with FileLock(state.with_name(f"{state.name}.lock"), timeout=0):
            yield
    except Timeout as error:
        raise ConfigurationError(
            f"Expected no other server to use {state}, but one does. Stop it, or follow it with `--follow {state}`."
        ) from error
