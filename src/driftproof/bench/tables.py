"""Tables and suites: which runs a table shows, and where."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from driftproof.bench.spec import Spec

__all__ = ["Suite", "Summary", "Table", "TableEntry"]


@dataclass(frozen=True)
class TableEntry:
    """One number of a table.

    Attributes:
        row: The method, as our tables name it.
        column: The setting, as the paper's table names it.
        specs: The runs the number comes from; their mean if there are several.
        metric: The key to read in their rows.
        round: Round to read.
        domain: Domain to read; None for the mean over domains.
        paper_row: Name of the row in the paper's table; None if it has none.
    """

    row: str
    column: str
    specs: tuple[Spec, ...]
    metric: str = "error"
    round: int = 1
    domain: str | None = None
    paper_row: str | None = None


@dataclass(frozen=True)
class Summary:
    """A column computed from other columns.

    Attributes:
        column: Its name in the paper's table.
        of: The columns it summarizes.
        how: Mean or sample standard deviation.
    """

    column: str
    of: tuple[str, ...]
    how: Literal["mean", "deviation"] = "mean"


@dataclass(frozen=True)
class Table:
    """Layout of a table: a table of the paper, or one of our own.

    Attributes:
        name: Name in the command line and in results, such as `table1`.
        title: What it shows.
        paper: Identifier of the paper's table; None for a table of our own.
        entries: Its entries, row by row.
        summaries: Columns computed from the others.
        unit: Unit of the numbers.
        lower_is_better: Whether the smallest number is the best; None if no number is.
    """

    name: str
    title: str
    entries: tuple[TableEntry, ...]
    paper: str | None = None
    summaries: tuple[Summary, ...] = ()
    unit: str = "error %"
    lower_is_better: bool | None = True


@dataclass(frozen=True)
class Suite:
    """Runs that one command executes, and the tables they fill.

    Attributes:
        name: Name in the command line.
        title: What it shows.
        tables: The tables it fills.
        rounds: Number of rounds the tables need.
        note: What to know before running it.
        command: The command that runs it, if it is not `bench run`.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    rounds: int
    note: str = ""
    command: str | None = None

    def specs(self) -> Iterator[Spec]:
        """Iterate over the runs, each once, in the order of the tables."""
        seen: set[Spec] = set()
        for table in self.tables:
            for entry in table.entries:
                for spec in entry.specs:
                    if spec not in seen:
                        seen.add(spec)
                        yield spec
