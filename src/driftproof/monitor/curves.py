"""Draw reports as curves of block characters."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

from driftproof.health import Health
from driftproof.monitor.base import BatchReport, Notice, NoticeKind

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["draw_curve", "draw_reports", "parse_notice", "parse_report"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_STATE_STYLES = {"healthy": "green", "drifting": "yellow", "collapsed": "bold red"}
_COUNTS = ("batch", "images", "selected", "quarantined", "errors", "alarms")
_NUMBERS = ("time", "kept", "novelty", "entropy", "loss", "seconds")
_CURVES: dict[str, Callable[[BatchReport], float]] = {
    "kept": lambda report: report.kept,
    "novelty": lambda report: report.novelty,
    "entropy": lambda report: report.entropy,
    "loss": lambda report: report.loss,
    "disagreement": lambda report: report.health.disagreement,
    "distance": lambda report: report.health.distance,
    "alarms": lambda report: report.alarms,
    "errors": lambda report: report.errors,
    "ms per step": lambda report: 1000 * report.seconds,
}


def draw_curve(values: Sequence[float], width: int = 60) -> str:
    """Return a curve of at most `width` characters; each is the mean of a stretch, blank where nothing was measured.

    Examples:
        >>> draw_curve([0, 1, 2, 3, 4, 5, 6, 7])
        '▁▂▃▄▅▆▇█'
        >>> draw_curve([1.0, float("nan"), 2.0])
        '▁ █'
    """
    count = min(width, len(values))
    edges = [round(place * len(values) / count) for place in range(count + 1)] if count else []
    means = [_mean(values[start:end]) for start, end in pairwise(edges)]
    finite = [value for value in means if math.isfinite(value)]
    if not finite:
        return " " * count
    low, high = min(finite) / 2, max(finite) / 2  # halves, so that no difference overflows
    heights = [(value / 2 - low) / (high - low) if high > low else 0.0 * value for value in means]
    return "".join(_BLOCKS[round(height * (len(_BLOCKS) - 1))] if math.isfinite(height) else " " for height in heights)


def draw_reports(reports: Sequence[BatchReport], notices: Sequence[Notice] = (), width: int = 60) -> "RenderableType":
    """Return curves of reports and a list of notices, for rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if not reports:
        return Group(Text("no batch yet"), *(_format_notice(notice) for notice in notices))
    last = reports[-1]
    state = Text(last.health.state, style=_STATE_STYLES[last.health.state])
    heading = Text.assemble(
        f"batches {reports[0].batch} to {last.batch}, {sum(report.images for report in reports)} images, ", state
    )
    if last.health.reason:
        heading.append(f": {last.health.reason}")
    table = Table("", "", "least", "most", "last", box=None, pad_edge=False)
    for name, read in _CURVES.items():
        values = [read(report) for report in reports]
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            numbers = [f"{number:.3g}" for number in (min(finite), max(finite), finite[-1])]
            table.add_row(name, draw_curve(values, width), *numbers)
    return Group(heading, table, *(_format_notice(notice) for notice in notices))


def parse_report(line: dict[str, Any]) -> BatchReport:
    """Return the report that a line of a log describes; raise `ValueError` if it is none."""
    try:
        health = Health(**{name: _read_number(line["health"][name]) for name in vars(Health())})
        numbers = {name: _read_number(line[name]) for name in _NUMBERS}
        counts = {name: int(line[name]) for name in _COUNTS}
        skipped = None if line["skipped"] is None else str(line["skipped"])
        actions = tuple(map(str, line["actions"]))
        stepped = bool(line["stepped"])
        return BatchReport(**counts, **numbers, health=health, skipped=skipped, actions=actions, stepped=stepped)  # type: ignore[arg-type]
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"no report: {error!r}") from error


def parse_notice(line: dict[str, Any]) -> Notice:
    """Return the notice that a line of a log describes; raise `ValueError` if it is none."""
    try:
        kind: NoticeKind = line["kind"] if line["kind"] in get_args(NoticeKind) else "run"
        details = line.get("details", {})
        return Notice(kind, str(line["message"]), float(line["time"]), int(line["batch"]), details)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"no notice: {error!r}") from error


def _read_number(value: Any) -> float:  # noqa: ANN401  # whatever a line holds
    return math.nan if value is None else float(value)


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _format_notice(notice: Notice) -> "RenderableType":
    from rich.text import Text

    try:
        moment = datetime.fromtimestamp(notice.time).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a clock that jumped
        moment = "?"
    return Text(f"{moment}  batch {notice.batch}  {notice.kind}: {notice.message}", overflow="fold")
