"""How a command ends: its exit status, and what is said when it stops early."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from driftproof.errors import DriftproofError

__all__ = ["STATUSES", "Commands", "Status", "ending"]


class Status(IntEnum):
    """What the exit status of every command means."""

    DONE = 0
    NO = 1
    MISTAKE = 2
    INTERRUPTED = 130


STATUSES = (
    "Exit status: 0 done; 1 the answer is no (a model cannot be adapted at all, a file is wrong); 2 the command could "
    "not be carried out as given (bad input, an unknown name, a file that cannot be read or written, a missing "
    "package); 130 interrupted."
)


@contextmanager
def ending() -> Iterator[None]:
    """Turn what stops a command into one line on the error stream and a status."""
    try:
        yield
    except KeyboardInterrupt:
        _say("interrupted")
        raise typer.Exit(Status.INTERRUPTED) from None
    except (DriftproofError, OSError) as error:
        # A reader that has seen enough, such as `head`, is no mistake; the command line's own library deals with it.
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise
        _say("error", _sentence(error))
        raise typer.Exit(Status.MISTAKE) from None


class Commands(TyperGroup):
    """A group of commands that all end as `ending` says."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  # whatever the command line's own library hands around
        """Run the command that was asked for."""
        with ending():
            return super().invoke(ctx)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return " ".join(str(error).splitlines())


def _say(what: str, sentence: str = "") -> None:
    line = Text.assemble((what, "bold red"), f": {sentence}" if sentence else "")
    Console(stderr=True).print(line, highlight=False, soft_wrap=True)
