"""The command line: turns words into calls, and errors into messages."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from driftproof import __version__
from driftproof.cli.corrupt import corrupt_command
from driftproof.cli.data import data_commands
from driftproof.cli.train import train_command
from driftproof.errors import DriftproofError

__all__ = ["app", "main"]

app = typer.Typer(
    name="driftproof",
    help="Open-set test-time adaptation for PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(data_commands, name="data")
app.command("corrupt")(corrupt_command)
app.command("train")(train_command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"driftproof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    """Open-set test-time adaptation for PyTorch."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake of the caller ends it with status 2 and one line that says what to do."""
    try:
        app(args=arguments, prog_name="driftproof")
    except (DriftproofError, FileNotFoundError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False, markup=True)
        sys.exit(2)
