"""Tables with the paper's numbers next to ours."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from driftproof.bench.tables import Summary, Table, TableEntry
from driftproof.paper.printed import paper_table

__all__ = ["PaperEntry", "make_table"]


@dataclass(frozen=True)
class PaperEntry(TableEntry):
    """One number of a table, and the row of the paper's table that has its counterpart; None if there is none."""

    paper_row: str | None = None


def make_table(
    name: str,
    title: str,
    entries: Iterable[TableEntry],
    paper: str | None = None,
    summaries: Iterable[Summary] = (),
    unit: str = "error %",
    lower_is_better: bool | None = True,
) -> Table:
    """Make a table; `paper` is the paper's table with the numbers to compare with."""
    names = {entry.row: entry.paper_row for entry in entries if isinstance(entry, PaperEntry)}
    if paper is None:
        return Table(name, title, tuple(entries), "", tuple(summaries), unit, lower_is_better)
    printed = paper_table(paper)
    with_numbers = tuple(
        replace(entry, reference=printed.value(row, entry.column)) if (row := names.get(entry.row)) else entry
        for entry in entries
    )
    columns = tuple(
        replace(
            summary, references={row: printed.rows[name].values[summary.column] for row, name in names.items() if name}
        )
        for summary in summaries
    )
    better = {column: printed.better[column] == "lower" for column in printed.columns}
    return Table(name, title, with_numbers, printed.reference, columns, unit, better)
