"""A benchmark as it goes: one line for every cell at work."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from driftproof.cli.progress import counting

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from driftproof.bench.runner import Note, Told
    from driftproof.bench.spec import Spec

__all__ = ["followed"]


@contextmanager
def followed() -> "Iterator[Told]":
    """Shows on the error stream what it is told while the context lasts."""
    with counting() as progress:
        yield _Lines(progress)


class _Lines:
    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._tasks: dict[Spec, TaskID] = {}
        self._measured: dict[Spec, str] = {}

    def __call__(self, note: "Note") -> None:
        if note.spec not in self._tasks:
            self._tasks[note.spec] = self._progress.add_task(_title(note.spec), total=note.total)
        if note.row is not None:
            self._measured[note.spec] = _measured(note)
        description = f"{_title(note.spec)}: {self._stage(note)}"
        self._progress.update(self._tasks[note.spec], completed=note.done, total=note.total, description=description)

    def _stage(self, note: "Note") -> str:
        if note.total is not None:
            return self._measured.get(note.spec, note.stage)
        return f"{note.stage}, {note.done} images" if note.done else note.stage


def _title(spec: "Spec") -> str:
    method = spec.method if "," not in spec.method else spec.task
    return f"{method} on {spec.images}, {spec.setting}" + (f", seed {spec.seed}" if spec.seed else "")


def _measured(note: "Note") -> str:
    row = note.row or {}
    error = row.get("error")
    return f"round {row['round']}, {row['domain']}" + ("" if error is None else f" {error:.1f} %")
