"""Options of monitoring, and the monitor they make."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from driftproof.monitor import Exporter, Monitor

__all__ = [
    "EventLog",
    "Live",
    "LogFile",
    "MonitorOptions",
    "OpenTelemetryFlag",
    "PrometheusPort",
    "TensorBoardFolder",
    "WebhookUrl",
    "open_monitor",
]

_PANEL = "Monitoring"
_TOKEN = "DRIFTPROOF_WEBHOOK_TOKEN"

LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log",
        help="Log batches, health, guard events and alarms to this file as JSON Lines; `driftproof monitor` draws it.",
        rich_help_panel=_PANEL,
    ),
]
EventLog = Annotated[
    Path | None,
    typer.Option(
        "--event-log", help="Log only alarms, guard events and errors, as JSON Lines.", rich_help_panel=_PANEL
    ),
]
WebhookUrl = Annotated[
    str | None,
    typer.Option(
        "--webhook",
        help=f"Post alarms, guard events and health to this address as JSON; {_TOKEN} is sent as a bearer token.",
        rich_help_panel=_PANEL,
    ),
]
PrometheusPort = Annotated[
    int | None,
    typer.Option(
        "--prometheus",
        min=0,
        max=65535,
        help="Serve metrics for Prometheus at this port of 127.0.0.1.",
        rich_help_panel=_PANEL,
    ),
]
OpenTelemetryFlag = Annotated[
    bool,
    typer.Option(
        "--opentelemetry",
        help="Record metrics with OpenTelemetry; run the command under `opentelemetry-instrument`.",
        rich_help_panel=_PANEL,
    ),
]
TensorBoardFolder = Annotated[
    Path | None,
    typer.Option("--tensorboard", help="Write curves for TensorBoard to this folder.", rich_help_panel=_PANEL),
]
Live = Annotated[bool, typer.Option("--live", help="Draw curves while the run goes on.", rich_help_panel=_PANEL)]


@dataclass(frozen=True)
class MonitorOptions:
    """Where reports and notices go.

    Attributes:
        log: File for reports and notices.
        event_log: File for notices alone.
        webhook: Address for notices.
        prometheus: Port for metrics.
        opentelemetry: Whether to record metrics with OpenTelemetry.
        tensorboard: Folder for curves.
        live: Whether to draw curves in the terminal.
    """

    log: Path | None = None
    event_log: Path | None = None
    webhook: str | None = None
    prometheus: int | None = None
    opentelemetry: bool = False
    tensorboard: Path | None = None
    live: bool = False


@contextmanager
def open_monitor(options: MonitorOptions, progress: "Progress") -> "Iterator[Monitor]":
    """Yield a monitor with the exporters that were asked for; what they could not deliver is said at the end."""
    from driftproof.monitor import Monitor, Webhook

    exporters = list(_make_exporters(options, progress))
    monitor = Monitor(*exporters)
    try:
        with monitor:
            yield monitor
    finally:
        for name, count in monitor.failures.items():
            typer.echo(f"warning: {name} failed {count} times, last with: {monitor.last_error}", err=True)
        for exporter in exporters:
            if isinstance(exporter, Webhook) and exporter.dropped:
                typer.echo(f"warning: {exporter.dropped} notices were not delivered: {exporter.last_error}", err=True)


def _make_exporters(options: MonitorOptions, progress: "Progress") -> "Iterator[Exporter]":
    from driftproof import monitor

    if options.log is not None:
        yield monitor.JsonLog(options.log)
    if options.event_log is not None:
        yield monitor.JsonLog(options.event_log, batches=False)
    if options.webhook is not None:
        token = os.environ.get(_TOKEN)
        yield monitor.Webhook(options.webhook, headers={"Authorization": f"Bearer {token}"} if token else None)
    if options.prometheus is not None:
        exporter = monitor.Prometheus(options.prometheus)
        typer.echo(f"metrics at http://127.0.0.1:{exporter.port}/metrics", err=True)
        yield exporter
    if options.opentelemetry:
        yield monitor.OpenTelemetry()
    if options.tensorboard is not None:
        yield monitor.TensorBoard(options.tensorboard)
    if options.live:
        progress.stop()  # a terminal has room for one live display
        yield monitor.LiveView(progress.console)
