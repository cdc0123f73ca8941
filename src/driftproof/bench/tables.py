"""Tables and suites: which runs a table shows, and where."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from driftproof.bench.spec import Spec

__all__ = ["Suite", "Summary", "Table", "TableEntry"]


@dataclass(frozen=True)
class TableEntry:
    """One number of a table.

    Attributes:
        row: The method, as our tables name it.
        column: The setting.
        specs: The runs the number comes from; their mean if there are several.
        metric: The key to read in their rows, in this round.
        domain: Domain to read; None for the mean over domains.
        reference: The number to compare with, such as one that a paper prints.
    """

    row: str
    column: str
    specs: tuple[Spec, ...]
    metric: str = "error"
    round: int = 1
    domain: str | None = None
    reference: float | None = None


@dataclass(frozen=True)
class Summary:
    """A column computed from others, and the numbers to compare it with, by row; a deviation is a sample's."""

    column: str
    of: tuple[str, ...]
    how: Literal["mean", "deviation"] = "mean"
    references: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Table:
    """Layout of a table.

    Attributes:
        name: Name in the command line and in results, such as `table1`.
        title: What it shows.
        entries: Its entries, row by row.
        reference: Where the numbers to compare with are from, such as a table of a paper.
        summaries: Columns computed from the others.
        unit: Unit of the numbers.
        lower_is_better: Whether the smallest number is the best, also by column; None if no number is.
    """

    name: str
    title: str
    entries: tuple[TableEntry, ...]
    reference: str = ""
    summaries: tuple[Summary, ...] = ()
    unit: str = "error %"
    lower_is_better: bool | Mapping[str, bool] | None = field(default=True, hash=False)

    def is_lower_better(self, column: str) -> bool | None:
        """Whether the smallest number of a column is the best; None if no number is."""
        return self.lower_is_better[column] if isinstance(self.lower_is_better, Mapping) else self.lower_is_better


@dataclass(frozen=True)
class Suite:
    """Runs that one command executes, and the tables they fill.

    Attributes:
        rounds: Number of rounds the tables need.
        note: What to know before running it.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    rounds: int
    note: str = ""

    def specs(self) -> Iterator[Spec]:
        """Iterate over the runs, each once, in the order of the tables."""
        entries = (entry for table in self.tables for entry in table.entries)
        yield from dict.fromkeys(spec for entry in entries for spec in entry.specs)
