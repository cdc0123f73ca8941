"""Print results as tables or JSON."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["AsJson", "make_table", "print_json", "print_table"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_json(content: object) -> None:
    """Print JSON to stdout.

    Examples:
        >>> print_json([])
        []
    """
    typer.echo(json.dumps(content, indent=2))


def make_table(*headings: str) -> Table:
    """Return a table that wraps its cells on a narrow terminal instead of truncating them."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print a table to stdout, wrapping cells instead of truncating them."""
    table = make_table(*headings)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    Console().print(table)
