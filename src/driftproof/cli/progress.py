"""Progress bars."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(bar_width: int = 40) -> "Iterator[Progress]":
    """Show progress bars on stderr, so that stdout stays clean for scripts."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from driftproof.cli.bounded_progress import BoundedProgress

    columns = (TextColumn("{task.description}"), BarColumn(bar_width), MofNCompleteColumn(), TimeRemainingColumn())
    with BoundedProgress(*columns, console=Console(stderr=True)) as progress:
        yield progress
