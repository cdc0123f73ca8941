"""`driftproof monitor`: draw a run from its log."""

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from driftproof.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from driftproof.monitor import BatchReport, Notice

__all__ = ["monitor_command"]

_POLL_SECONDS = 1.0


def monitor_command(
    file: Annotated[Path, typer.Argument(help="Log of `driftproof adapt --log` or of a `JsonLog`.")],
    last: Annotated[int | None, typer.Option(min=1, help="Draw only so many of the latest batches.")] = None,
    notices: Annotated[int, typer.Option(min=0, help="List so many of the latest alarms and events.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", help="Draw again as the log grows, until Ctrl-C.")] = False,
) -> None:
    """Draw the curves of a run and list its latest alarms, guard events and errors, from its log."""
    console = Console()
    if not follow:
        console.print(_draw(file, last, notices, console.width))
        return
    from rich.live import Live

    with Live(_draw(file, last, notices, console.width), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_POLL_SECONDS)
            live.update(_draw(file, last, notices, console.width), refresh=True)


def _draw(file: Path, last: int | None, listed: int, width: int) -> "RenderableType":
    from driftproof.monitor.curves import draw_reports, parse_notice, parse_report
    from driftproof.monitor.json_log import read_log

    reports: dict[int, BatchReport] = {}  # a batch that a resumed run repeated counts once
    notices: deque[Notice] = deque(maxlen=listed)
    found = False
    for line in read_log(file):
        found = True
        try:
            if line.get("type") == "batch":
                report = parse_report(line)
                reports.pop(report.batch, None)
                reports[report.batch] = report
                if last is not None and len(reports) > last:
                    del reports[next(iter(reports))]
            elif line.get("type") == "notice":
                notices.append(parse_notice(line))
        except ValueError as error:
            raise InputError(f"Expected {file} to be the log of a run, but a line is {error}.") from error
    if not found:
        raise InputError(f"Expected {file} to be the log of a run, but it holds no line of JSON.")
    ordered = [reports[number] for number in sorted(reports)]
    return draw_reports(ordered, list(notices), width=max(10, width - 50))
