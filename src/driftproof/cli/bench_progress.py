"""Progress display of a benchmark: one line per active run."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from driftproof.cli.progress import progress_bar
from driftproof.validation import distinguishing_items

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from driftproof.bench.runner import ProgressCallback, ProgressEvent
    from driftproof.bench.spec import Spec

__all__ = ["progress_display"]

_FAILED = "failed"  # the stage that executors report
_LOG_EVERY = 10.0  # seconds; a table has tens of thousands of rows


@contextmanager
def progress_display(specs: "Iterable[Spec]") -> "Iterator[ProgressCallback]":
    """Show the progress of runs on stderr; yields the callback that takes events.

    In a log file, results and preparation stages are printed as lines, at most one every ten seconds. Failures are
    always printed.
    """
    with progress_bar() as progress:
        lines = _ProgressLines(progress, specs)
        yield lines if progress.console.is_terminal else _log_callback(lines, progress.console)


def _log_callback(lines: "_ProgressLines", console: "Console") -> "ProgressCallback":
    last_printed = -math.inf

    def on_progress(event: "ProgressEvent") -> None:
        nonlocal last_printed
        lines(event)
        is_loggable = event.row is not None or event.total is None
        if event.stage == _FAILED or (is_loggable and monotonic() - last_printed >= _LOG_EVERY):
            last_printed = monotonic()
            console.print(lines.format(event), highlight=False, markup=False, soft_wrap=True)

    return on_progress


class _ProgressLines:
    def __init__(self, progress: "Progress", specs: "Iterable[Spec]") -> None:
        self._progress = progress
        self._titles = _make_titles(specs)
        self._tasks: dict[Spec, TaskID] = {}
        self._measured: dict[Spec, str] = {}

    def __call__(self, event: "ProgressEvent") -> None:
        if event.spec not in self._tasks:
            self._tasks[event.spec] = self._progress.add_task(self._titles[event.spec], total=event.total)
        if event.row is not None:
            self._measured[event.spec] = _format_row(event)
        task = self._tasks[event.spec]
        self._progress.update(task, completed=event.done, total=event.total, description=self.format(event))

    def format(self, event: "ProgressEvent") -> str:
        """Return the line that describes an event."""
        return f"{self._titles[event.spec]}: {self._format_stage(event)}"

    def _format_stage(self, event: "ProgressEvent") -> str:
        if event.total is not None:
            return self._measured.get(event.spec, event.stage)
        return f"{event.stage}, {event.done} images" if event.done else event.stage


def _make_titles(specs: "Iterable[Spec]") -> "dict[Spec, str]":
    """Return a distinct title per run; runs with equal base titles add the fields they differ in."""
    by_title: dict[str, list[Spec]] = {}
    for spec in specs:
        by_title.setdefault(_base_title(spec), []).append(spec)
    return {
        spec: ", ".join([name, *_distinguish(spec, others)]) for name, others in by_title.items() for spec in others
    }


def _base_title(spec: "Spec") -> str:
    method = spec.method if "," not in spec.method else spec.task
    setting = "" if "iou" in spec.measures else f", {spec.setting}"  # scenes always contain unknown objects
    return f"{method} on {spec.images}{setting}" + (f", seed {spec.seed}" if spec.seed else "")


def _distinguish(spec: "Spec", others: "Sequence[Spec]") -> list[str]:
    from driftproof.bench.spec import distinguishing_fields

    facts = [{"network": each.model, **dict(each.options)} for each in (spec, *others)]
    return [*distinguishing_items(*facts), *distinguishing_fields(spec, others)]


def _format_row(event: "ProgressEvent") -> str:
    row = event.row or {}
    value = next((row[measure] for measure in ("error", "mean_iou") if measure in row), None)
    return f"round {row['round']}, {row['domain']}" + (f" {value:.1f} %" if isinstance(value, float) else "")
