"""What a command answers, for people and for scripts."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["AsJson", "print_json", "print_table"]

AsJson = Annotated[bool, typer.Option("--json", help="For scripts: JSON on standard output.")]


def print_json(content: object) -> None:
    """Write to standard output what a script asked for.

    Examples:
        >>> print_json([])
        []
    """
    typer.echo(json.dumps(content, indent=2))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Write a table to standard output, its cells as they are, every word of them."""
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    Console().print(table)
