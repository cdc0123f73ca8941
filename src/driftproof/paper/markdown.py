"""Tables in Markdown: our numbers, the paper's, and the difference."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

from driftproof.bench import FilledTable
from driftproof.report.comparison import Comparison, TableCell, compare_with_paper

__all__ = ["format_markdown_table", "render_table"]

_MAX_COLUMNS = 3


def render_table(filled: FilledTable) -> str:
    """Render a table in Markdown; with the paper's numbers, one table per group of columns.

    A number from an earlier round than the table asks for is followed by `@` and that round.

    Args:
        filled: The table with its numbers.
    """
    comparison = compare_with_paper(filled)
    if not comparison.reference:
        rows = [
            [row, *(_format_ours(comparison, row, column) for column in comparison.columns)] for row in comparison.rows
        ]
        return format_markdown_table(["", *comparison.columns], rows)
    return "\n\n".join(_render_with_paper(comparison, columns) for columns in _group_columns(comparison.columns))


def _group_columns(columns: Sequence[str]) -> Iterator[Sequence[str]]:
    """Group the columns of one image set; split columns without a set into groups that fit the page."""
    for name, group in itertools.groupby(columns, key=lambda column: column.partition("/")[0] * ("/" in column)):
        members = list(group)
        width = len(members) if name else _MAX_COLUMNS
        yield from (members[start : start + width] for start in range(0, len(members), width))


def _render_with_paper(comparison: Comparison, columns: Sequence[str]) -> str:
    head = ["", *itertools.chain.from_iterable((column, "paper", "difference") for column in columns)]
    rows = []
    for row in comparison.rows:
        cells = [comparison.cells.get((row, column), TableCell()) for column in columns]
        if any(cell.ours for cell in cells):
            texts = (
                (_format_ours(comparison, row, column), cell.paper, cell.difference)
                for column, cell in zip(columns, cells, strict=True)
            )
            rows.append([row, *itertools.chain.from_iterable(texts)])
    return format_markdown_table(head, rows)


def _format_ours(comparison: Comparison, row: str, column: str) -> str:
    cell = comparison.cells.get((row, column), TableCell())
    ours = f"**{cell.ours}**" if cell.is_best and cell.ours else cell.ours
    return " ".join(filter(None, (ours, cell.std, cell.round_note))) or "–"


def format_markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table; the first column is text, the others are numbers.

    Examples:
        >>> print(format_markdown_table(["", "error"], [["tent", "12.3"]]))
        |  | error |
        |---|---:|
        | tent | 12.3 |
    """
    lines = [head, *rows]
    rule = "|".join(["", "---", *["---:"] * (len(head) - 1), ""])
    first, *others = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([first, rule, *others])
