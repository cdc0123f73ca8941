"""The command line: turns arguments into library calls, and errors into messages.

A command is a thin function that imports the library when it runs, so that help, version and shell completion answer
at once.
"""

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from driftproof import __version__
from driftproof.cli.adapt import adapt_command
from driftproof.cli.analyze import analyze_commands
from driftproof.cli.bench import bench_commands
from driftproof.cli.check import check_command
from driftproof.cli.corrupt import corrupt_command
from driftproof.cli.data import data_commands
from driftproof.cli.demo import demo_command
from driftproof.cli.exit_codes import EXIT_CODES_HELP, CommandGroup
from driftproof.cli.monitor import monitor_command
from driftproof.cli.serve import serve_command
from driftproof.cli.train import train_command
from driftproof.cli.try_methods import try_command

__all__ = ["app", "main"]

app = typer.Typer(
    name="driftproof",
    cls=CommandGroup,
    help="Open-set test-time adaptation for PyTorch.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
)
app.command("demo")(demo_command)
app.add_typer(bench_commands, name="bench")
app.command("check")(check_command)
app.command("adapt")(adapt_command)
app.command("monitor")(monitor_command)
app.command("try")(try_command)
app.command("serve")(serve_command)
app.add_typer(analyze_commands, name="analyze")
app.add_typer(data_commands, name="data")
app.command("corrupt")(corrupt_command)
app.command("train")(train_command)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"driftproof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Open-set test-time adaptation for PyTorch."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with a status code.

    The code is 0 on success; 1 if the answer is no (a model cannot be adapted, a file is wrong, a run failed); 2 for a
    usage error (bad input, an unknown name, a file that cannot be read or written, a missing package); 130, 143 or 129
    after an interrupt, a termination or a hang-up. For all but 0 and 1, one line on stderr says what happened.

    Args:
        arguments: Arguments after `driftproof`; None for those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # print "?" for characters the terminal cannot encode
    given = list(sys.argv[1:] if arguments is None else arguments)
    app(args=given, prog_name="driftproof", obj=given)
