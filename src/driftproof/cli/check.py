"""`driftproof check`: report problems of a model and how to fix them."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from driftproof.cli.exit_codes import ExitCode
from driftproof.cli.model import Classes, ModelName, Weights, load_model
from driftproof.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from driftproof.problems import Problem

__all__ = ["check_command"]

_STYLES = {"error": "bold red", "warning": "yellow", "note": ""}


def check_command(
    model: ModelName = None,
    weights: Weights = None,
    classes: Classes = None,
    as_json: AsJson = False,
) -> None:
    """Report problems of a model and how to fix them; exit code 1 if it cannot be adapted."""
    from driftproof.problems import check

    problems = check(load_model(model, weights, classes))
    if as_json:
        print_json([asdict(problem) for problem in problems])
    elif problems:
        print_table(("severity", "what", "where", "what to do"), map(_row, problems))
    else:
        typer.echo("No problems: every method applies as in the paper.")
    if any(problem.severity == "error" for problem in problems):
        raise typer.Exit(ExitCode.NEGATIVE)


def _row(problem: "Problem") -> tuple[Text, str, str, str]:
    where = ", ".join(problem.layers[:3]) + (f" and {len(problem.layers) - 3} more" if problem.layers[3:] else "")
    return Text(problem.severity, _STYLES[problem.severity]), problem.message, where or "the model", problem.fix
