"""Exit codes, and the conversion of errors to messages."""

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
    """Exit codes of all commands."""

    OK = 0
    NEGATIVE = 1
    USAGE_ERROR = 2
    INTERRUPTED = 130


EXIT_CODES_HELP = (
    "Exit codes: 0 success; 1 the answer is no (a model cannot be adapted, a file is wrong, a run failed); 2 usage "
    "error (bad input, an unknown name, a file that cannot be read or written, a missing package); 130 interrupted, "
    "143 terminated, 129 hung up."
)


@contextmanager
def handle_errors() -> Iterator[None]:
    """Convert errors to one line on stderr and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        _print_error("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except (DriftproofError, OSError) as error:
        # A closed pipe, as after `| head`, is not an error; typer handles it.
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise
        _print_error("error", _format_error(error))
        raise typer.Exit(ExitCode.USAGE_ERROR) from None


class CommandGroup(TyperGroup):
    """A command group whose commands run inside `handle_errors`."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  # as declared by typer
        """Run the command."""
        with handle_errors():
            return super().invoke(ctx)


def _format_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return " ".join(str(error).splitlines())


def _print_error(kind: str, message: str = "") -> None:
    line = Text.assemble((kind, "bold red"), f": {message}" if message else "")
    Console(stderr=True).print(line, highlight=False, soft_wrap=True)
