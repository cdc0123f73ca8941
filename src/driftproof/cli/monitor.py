"""`driftproof monitor`: draw a run from its log."""

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from driftproof.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from driftproof.monitor import BatchReport, Notice

__all__ = ["LoggedRun", "monitor_command"]

_POLL_SECONDS = 1.0


def monitor_command(
    file: Annotated[Path, typer.Argument(help="Log of `driftproof adapt --log` or of a `JsonLog`.")],
    last: Annotated[int | None, typer.Option(min=1, help="Draw only so many of the latest batches.")] = None,
    notices: Annotated[int, typer.Option(min=0, help="List so many of the latest alarms and events.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", help="Draw again as the log grows, until Ctrl-C.")] = False,
) -> None:
    """Draw the curves of a run and list its latest alarms, guard events and errors, from its log."""
    console = Console()
    run = LoggedRun(file, last, notices)
    run.read()
    if not follow:
        console.print(run.draw(console.width))
        return
    from rich.live import Live

    with Live(run.draw(console.width), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_POLL_SECONDS)
            run.read()
            live.update(run.draw(console.width), refresh=True)


class LoggedRun:
    """The batches and notices of a log.

    Args:
        file: The log.
        last: How many batches to keep; None keeps all.
        listed: How many notices to keep.
    """

    def __init__(self, file: Path, last: int | None, listed: int) -> None:
        from driftproof.monitor.json_log import LogReader

        self._file, self._last = file, last
        self._reader = LogReader(file)
        self._reports: dict[int, BatchReport] = {}  # a batch that a resumed run repeated counts once
        self._notices: deque[Notice] = deque(maxlen=listed)

    def read(self) -> None:
        """Read what is new."""
        try:
            for line in self._reader.read():
                self._add(line)
        except ValueError as error:
            raise InputError(f"Expected {self._file} to be the log of a run, but a line is {error}.") from error
        if not self._reports and not self._notices:
            raise InputError(f"Expected {self._file} to be the log of a run, but it holds no batch and no event.")

    def draw(self, width: int) -> "RenderableType":
        """Return the curves and the notices."""
        from driftproof.monitor.curves import draw_reports

        reports = [self._reports[number] for number in sorted(self._reports)]
        return draw_reports(reports, list(self._notices), width=max(10, width - 50))

    def _add(self, line: dict[str, Any]) -> None:
        from driftproof.monitor.curves import parse_notice, parse_report

        if line.get("type") == "notice":
            self._notices.append(parse_notice(line))
        elif line.get("type") == "batch":
            report = parse_report(line)
            self._reports.pop(report.batch, None)
            self._reports[report.batch] = report
            if self._last is not None and len(self._reports) > self._last:
                del self._reports[next(iter(self._reports))]
