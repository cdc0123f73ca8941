"""A benchmark as it goes: one line for every cell at work."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from driftproof.cli.progress import progress_bar
from driftproof.report.series import distinguishing_fields
from driftproof.validation import distinguishing_items

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from driftproof.bench.runner import ProgressCallback, ProgressEvent
    from driftproof.bench.spec import Spec

__all__ = ["progress_display"]

_FAILED = "failed"  # as executors call it
_LOG_EVERY = 10.0  # seconds; a table has tens of thousands of rows


@contextmanager
def progress_display(specs: "Iterable[Spec]") -> "Iterator[ProgressCallback]":
    """Shows on the error stream what it is told of some cells while the context lasts.

    In a log, where no line can change, what has been measured or is being prepared comes line by line, though not
    faster than one can read; but every failure does.
    """
    with progress_bar() as progress:
        lines = _ProgressLines(progress, specs)
        yield lines if progress.console.is_terminal else _log_callback(lines, progress.console)


def _log_callback(lines: "_ProgressLines", console: "Console") -> "ProgressCallback":
    said = -math.inf

    def tell(note: "ProgressEvent") -> None:
        nonlocal said
        lines(note)
        worth_a_line = note.row is not None or note.total is None
        if note.stage == _FAILED or (worth_a_line and monotonic() - said >= _LOG_EVERY):
            said = monotonic()
            console.print(lines.line(note), highlight=False, markup=False, soft_wrap=True)

    return tell


class _ProgressLines:
    def __init__(self, progress: "Progress", specs: "Iterable[Spec]") -> None:
        self._progress = progress
        self._titles = _make_titles(specs)
        self._tasks: dict[Spec, TaskID] = {}
        self._measured: dict[Spec, str] = {}

    def __call__(self, note: "ProgressEvent") -> None:
        if note.spec not in self._tasks:
            self._tasks[note.spec] = self._progress.add_task(self._titles[note.spec], total=note.total)
        if note.row is not None:
            self._measured[note.spec] = _format_row(note)
        task = self._tasks[note.spec]
        self._progress.update(task, completed=note.done, total=note.total, description=self.line(note))

    def line(self, note: "ProgressEvent") -> str:
        """What is said of a cell."""
        return f"{self._titles[note.spec]}: {self._format_stage(note)}"

    def _format_stage(self, note: "ProgressEvent") -> str:
        if note.total is not None:
            return self._measured.get(note.spec, note.stage)
        return f"{note.stage}, {note.done} images" if note.done else note.stage


def _make_titles(specs: "Iterable[Spec]") -> "dict[Spec, str]":
    """What cells are called; those that would be called the same say what tells them apart."""
    alike: dict[str, list[Spec]] = {}
    for spec in specs:
        alike.setdefault(_base_title(spec), []).append(spec)
    return {spec: ", ".join([name, *_distinguish(spec, others)]) for name, others in alike.items() for spec in others}


def _base_title(spec: "Spec") -> str:
    method = spec.method if "," not in spec.method else spec.task
    setting = "" if "iou" in spec.measures else f", {spec.setting}"  # what is unknown in a scene is always there
    return f"{method} on {spec.images}{setting}" + (f", seed {spec.seed}" if spec.seed else "")


def _distinguish(spec: "Spec", others: "Sequence[Spec]") -> list[str]:
    facts = [{"network": each.model, **dict(each.options)} for each in (spec, *others)]
    return [*distinguishing_items(*facts), *distinguishing_fields(spec, others)]


def _format_row(note: "ProgressEvent") -> str:
    row = note.row or {}
    found = next((row[measure] for measure in ("error", "mean_iou") if measure in row), None)
    return f"round {row['round']}, {row['domain']}" + (f" {found:.1f} %" if isinstance(found, float) else "")
