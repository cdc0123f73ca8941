"""Tables in Markdown: ours, the paper's, and the difference, side by side."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

from driftproof.bench import FilledTable
from driftproof.report.comparison import Comparison, TableCell, compare_with_paper

__all__ = ["format_markdown_table", "render_table"]

_MAX_COLUMNS = 3


def render_table(measured: FilledTable) -> str:
    """A table of which something was measured; one for each group of columns where the paper has numbers too.

    A number from an earlier round than the table asks for is followed by `@` and that round.

    Args:
        measured: The table with its numbers.
    """
    comparison = compare_with_paper(measured)
    if not comparison.reference:
        rows = [[row, *(_format_ours(comparison, row, column) for column in comparison.columns)] for row in comparison.rows]
        return format_markdown_table(["", *comparison.columns], rows)
    return "\n\n".join(_render_with_paper(comparison, columns) for columns in _group_columns(comparison.columns))


def _group_columns(columns: Sequence[str]) -> Iterator[Sequence[str]]:
    """Columns of one set together, and of those that belong to none as many as a page is wide enough for."""
    for name, group in itertools.groupby(columns, key=lambda column: column.partition("/")[0] * ("/" in column)):
        together = list(group)
        width = len(together) if name else _MAX_COLUMNS
        yield from (together[start : start + width] for start in range(0, len(together), width))


def _render_with_paper(comparison: Comparison, columns: Sequence[str]) -> str:
    head = ["", *itertools.chain.from_iterable((column, "paper", "difference") for column in columns)]
    rows = []
    for row in comparison.rows:
        places = [comparison.places.get((row, column), TableCell()) for column in columns]
        if any(place.ours for place in places):
            told = (
                (_format_ours(comparison, row, column), place.paper, place.difference)
                for column, place in zip(columns, places, strict=True)
            )
            rows.append([row, *itertools.chain.from_iterable(told)])
    return format_markdown_table(head, rows)


def _format_ours(comparison: Comparison, row: str, column: str) -> str:
    place = comparison.places.get((row, column), TableCell())
    number = f"**{place.ours}**" if place.best and place.ours else place.ours
    return " ".join(filter(None, (number, place.deviation, place.reached))) or "–"


def format_markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is words, the others numbers.

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
