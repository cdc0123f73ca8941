"""Tables: which cells they show, and where."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from driftproof.bench.spec import Spec

__all__ = ["TableEntry", "Suite", "Summary", "Table"]


@dataclass(frozen=True)
class TableEntry:
    """One number of a table.

    Attributes:
        row: The method, as our tables call it.
        column: The setting, as the paper's table calls it.
        specs: The cells the number comes from; the mean of several.
        metric: The key to read in their rows.
        round: In which round.
        domain: In which domain; None for the mean over all of them.
        paper_row: What the paper's table calls the row; None where it has none.
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
    """A column that summarizes others.

    Attributes:
        column: As the paper's table calls it.
        of: The columns it summarizes.
        how: Their mean, or their sample standard deviation.
    """

    column: str
    of: tuple[str, ...]
    how: Literal["mean", "deviation"] = "mean"


@dataclass(frozen=True)
class Table:
    """A table of the paper, filled by us.

    Attributes:
        name: As `bench` calls it, such as `table1`.
        title: What it shows.
        paper: Its identifier among the paper's numbers; None for a table of our own.
        entries: Its numbers, row by row.
        summaries: Columns made from the others.
        unit: Of the numbers.
        lower_is_better: Whether the smallest is the best; None where none is.
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
    """What one command runs.

    Attributes:
        name: As `bench run` calls it.
        title: What it shows.
        tables: The tables it fills.
        rounds: How many rounds they need.
        note: What a reader should know before running it.
        command: The command that runs it, where `bench run` does not.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    rounds: int
    note: str = ""
    command: str | None = None

    def specs(self) -> Iterator[Spec]:
        """Every cell, once, in the order of the tables."""
        seen: set[Spec] = set()
        for table in self.tables:
            for entry in table.entries:
                for spec in entry.specs:
                    if spec not in seen:
                        seen.add(spec)
                        yield spec
