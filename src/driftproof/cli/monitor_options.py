"""Options of monitoring, and the monitor they make."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from driftproof.monitor import Monitor

__all__ = ["LogFile", "MonitorOptions", "open_monitor"]

_PANEL = "Monitoring"

LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log",
        help="Log batches, health, guard events and alarms to this file as JSON Lines; `driftproof monitor` draws it.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True)
class MonitorOptions:
    """Where reports and notices go.

    Attributes:
        log: File for reports and notices.
    """

    log: Path | None = None


def open_monitor(options: MonitorOptions) -> "Monitor":
    """Return a monitor with the exporters that were asked for."""
    from driftproof.monitor import JsonLog, Monitor

    exporters = []
    if options.log is not None:
        exporters.append(JsonLog(options.log))
    return Monitor(*exporters)
