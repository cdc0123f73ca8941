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

__all__ = ["EXIT_CODES_HELP", "CommandGroup", "ExitCode", "handle_errors"]


class ExitCode(IntEnum):
    """What the exit status of every command means."""

    OK = 0
    NEGATIVE = 1
    USAGE_ERROR = 2
    INTERRUPTED = 130


EXIT_CODES_HELP = (
    "Exit status: 0 done; 1 the answer is no (a model cannot be adapted at all, a file is wrong); 2 the command could "
    "not be carried out as given (bad input, an unknown name, a file that cannot be read or written, a missing "
    "package); 130 interrupted."
)


@contextmanager
def handle_errors() -> Iterator[None]:
    """Turn what stops a command into one line on the error stream and a status."""
    try:
        yield
    except KeyboardInterrupt:
        _print_error("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except (DriftproofError, OSError) as error:
        # A reader that has seen enough, such as `head`, is no mistake; the command line's own library deals with it.
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise
        _print_error("error", _format_error(error))
        raise typer.Exit(ExitCode.USAGE_ERROR) from None


class CommandGroup(TyperGroup):
    """A group of commands that all end as `ending` says."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  # whatever the command line's own library hands around
        """Run the command that was asked for."""
        with handle_errors():
            return super().invoke(ctx)


def _format_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return " ".join(str(error).splitlines())


def _print_error(what: str, sentence: str = "") -> None:
    line = Text.assemble((what, "bold red"), f": {sentence}" if sentence else "")
    Console(stderr=True).print(line, highlight=False, soft_wrap=True)
