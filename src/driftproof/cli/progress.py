"""Progress bars."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["counting"]


@contextmanager
def counting() -> "Iterator[Progress]":
    """A progress display on the error stream, so that standard output stays clean for scripts."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from driftproof.cli.fitting import FittingProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with FittingProgress(*columns, console=Console(stderr=True)) as progress:
        yield progress
