"""A table as readers see it: ours, what selection gained, and the paper's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from driftproof.bench import FilledTable, Value
from driftproof.bench.paper import PaperTable, paper_table
from driftproof.corruptions import HELD_OUT
from driftproof.report.numbers import format_number, format_signed

__all__ = ["Comparison", "TableCell", "compare_with_paper"]


@dataclass(frozen=True)
class TableCell:
    """One place of a table, in words; what there is nothing to say about is empty.

    Attributes:
        ours: What was measured.
        reached: The round it is from, as `@7`, where that is earlier than the table asks for.
        deviation: Over seeds.
        gain: Against the same method without selection, in the same round.
        paper: What the paper says.
        difference: Ours less the paper's; only where the round is the paper's.
        best: Whether nothing in the column that has come as far is better.
    """

    ours: str = ""
    reached: str = ""
    deviation: str = ""
    gain: str = ""
    paper: str = ""
    difference: str = ""
    best: bool = False


@dataclass(frozen=True)
class Comparison:
    """A table of which something was measured.

    Attributes:
        name: As `bench` calls it.
        title: What it shows.
        reference: Where it stands in the paper; empty for a table of our own.
        unit: Of the numbers; empty where the columns name their own.
        better: Which way is; empty where that depends on the column.
        looks: In which round, and under held-out corruptions where it does; empty where that depends on the column.
        rows: The methods that were measured.
        columns: The settings that were measured.
        places: By row and column.
        missing: Methods of the table that were not measured.
        empty: Settings of the table in which nothing was.
    """

    name: str
    title: str
    reference: str
    unit: str
    better: str
    looks: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    places: Mapping[tuple[str, str], TableCell]
    missing: tuple[str, ...]
    empty: tuple[str, ...]

    @property
    def unfinished(self) -> bool:
        """Whether any number is from an earlier round than the table asks for."""
        return any(place.reached for place in self.places.values())

    @property
    def selects(self) -> bool:
        """Whether any number can be held against that of the same method without selection."""
        return any(place.gain for place in self.places.values())


def compare_with_paper(measured: FilledTable, *, digits: int = 2) -> Comparison:
    """What there is to see of a table.

    Args:
        measured: The table with its numbers.
        digits: After the point; numbers from 0 to 1 have two.
    """
    digits = 2 if measured.table.unit in ("cosine", "share of images") else digits
    rows = tuple(row for row in measured.rows if any(_is_measured(measured, row, column) for column in measured.columns))
    columns = tuple(column for column in measured.columns if any(_is_measured(measured, row, column) for row in rows))
    places = {
        (row, column): _make_cell(measured, row, column, digits)
        for row in rows
        for column in columns
        if (row, column) in measured.values
    }
    paper = _find_paper_table(measured)
    return Comparison(
        name=measured.table.name,
        title=measured.table.title,
        reference=paper.reference if paper else "",
        unit="" if measured.table.unit == "mixed" else measured.table.unit,
        better=_better_label(measured),
        looks=_round_label(measured),
        rows=rows,
        columns=columns,
        places=places,
        missing=tuple(row for row in measured.rows if row not in rows),
        empty=tuple(dict.fromkeys(entry.column for entry in measured.table.entries if entry.column not in columns)),
    )


def _make_cell(measured: FilledTable, row: str, column: str, digits: int) -> TableCell:
    value = measured.values[row, column]
    paper = "" if value.paper is None else format_number(value.paper, digits)
    if value.ours is None:
        return TableCell(paper=paper)
    return TableCell(
        ours=format_number(value.ours, digits),
        reached="" if value.complete else f"@{value.round}",
        deviation="" if value.deviation is None else f"±{format_number(value.deviation, digits)}",
        gain="" if (base := _value_without_selection(measured, row, column)) is None else format_signed(value.ours - base, digits),
        paper=paper,
        difference="" if value.difference is None or not value.complete else format_signed(value.difference, digits),
        best=_is_best(measured, value, column),
    )


def _value_without_selection(measured: FilledTable, row: str, column: str) -> float | None:
    """What the same method has without selection, in the same round and over the same seeds."""
    value, plain = measured.values[row, column], (re.sub(r"\+\w+", "", row), row.partition("+")[0])
    found = [measured.values[name, column] for name in plain if name != row and (name, column) in measured.values]
    alike = [base.ours for base in found[:1] if base.round == value.round and _seeds(base) == _seeds(value)]
    return alike[0] if alike else None


def _seeds(value: Value) -> set[int]:
    return {run.seed for run in value.runs}


def _is_best(measured: FilledTable, value: Value, column: str) -> bool:
    found = [found for row in measured.rows if (found := measured.values.get((row, column)))]
    furthest = max(rival.round or 0 for rival in found if rival.ours is not None)
    rivals = [rival.ours for rival in found if rival.ours is not None and rival.round == furthest]
    lower = _lower_is_better(measured, column)
    best = min(rivals) if lower else max(rivals)
    return lower is not None and len(rivals) > 1 and value.round == furthest and value.ours == best


def _lower_is_better(measured: FilledTable, column: str) -> bool | None:
    paper = _find_paper_table(measured)
    return paper.better[column] == "lower" if paper else measured.table.lower_is_better


def _better_label(measured: FilledTable) -> str:
    ways = {_lower_is_better(measured, column) for column in measured.columns}
    return "lower is better" if ways == {True} else "higher is better" if ways == {False} else ""


def _round_label(measured: FilledTable) -> str:
    streams = [(entry.round, spec) for entry in measured.table.entries for spec in entry.specs if spec.task == "stream"]
    rounds, domains = {round for round, _ in streams}, {spec.domains for _, spec in streams}
    told = [f"round {round}" for round in rounds if len(rounds) == 1]
    return ", ".join([*told, *["held-out corruptions"] * (domains == {HELD_OUT})])


def _find_paper_table(measured: FilledTable) -> PaperTable | None:
    return paper_table(measured.table.paper) if measured.table.paper else None


def _is_measured(measured: FilledTable, row: str, column: str) -> bool:
    value = measured.values.get((row, column))
    return value is not None and value.ours is not None
