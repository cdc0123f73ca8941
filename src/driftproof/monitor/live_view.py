"""A live view of a run in the terminal."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from driftproof.monitor.base import BatchReport, Exporter, Notice
from driftproof.monitor.curves import draw_reports

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["LiveView"]


class LiveView(Exporter):
    """Shows curves of the latest batches and the latest notices, redrawn a few times a second.

    Args:
        console: Where to draw; None is stderr. Nothing is drawn where it is no terminal.
        window: How many batches the curves cover.
        notices: How many notices to list.
    """

    def __init__(self, console: "Console | None" = None, *, window: int = 200, notices: int = 5) -> None:
        from rich.console import Console
        from rich.live import Live

        self._reports: deque[BatchReport] = deque(maxlen=window)
        self._notices: deque[Notice] = deque(maxlen=notices)
        self._console = console or Console(stderr=True)
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4, transient=True)
        if self._console.is_terminal:
            self._live.start()

    def export(self, report: BatchReport | None, notices: Sequence[Notice]) -> None:
        """Show a report and its notices."""
        if report is not None:
            self._reports.append(report)
        self._notices.extend(notices)

    def close(self) -> None:
        """Stop drawing."""
        self._live.stop()

    def _render(self) -> "RenderableType":
        # Drawn in another thread: copies do not change meanwhile.
        return draw_reports(list(self._reports.copy()), list(self._notices.copy()))
