"""A table for readers: our numbers, the gain from selection, and the paper's numbers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from driftproof.bench import FilledTable, Value
from driftproof.corruptions import HELD_OUT
from driftproof.report.numbers import format_number, format_signed

__all__ = ["Comparison", "TableCell", "compare_with_paper"]


@dataclass(frozen=True)
class TableCell:
    """One cell of a table as text; an attribute without a value is empty.

    Attributes:
        ours: Our number.
        round_note: Its round, as `@7`, if that is earlier than the table asks for.
        std: The standard deviation over seeds.
        gain: The difference to the same method without selection, in the same round.
        paper: The paper's number.
        difference: Ours minus the paper's; only if the round is the paper's.
        is_best: Whether no number of the column from the same round is better.
    """

    ours: str = ""
    round_note: str = ""
    std: str = ""
    gain: str = ""
    paper: str = ""
    difference: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class Comparison:
    """A table with at least one number of ours.

    Attributes:
        name: As `bench` calls it.
        title: What it shows.
        reference: The paper's name for it; empty for a table of our own.
        unit: Of the numbers; empty if the columns name their own.
        better: Whether lower or higher is better; empty if that depends on the column.
        round_label: The round, and held-out corruptions if used; empty if that depends on the column.
        rows: The methods with numbers.
        columns: The settings with numbers.
        cells: By row and column.
        missing_rows: Methods of the table without numbers.
        missing_columns: Settings of the table without numbers.
    """

    name: str
    title: str
    reference: str
    unit: str
    better: str
    round_label: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], TableCell]
    missing_rows: tuple[str, ...]
    missing_columns: tuple[str, ...]

    @property
    def has_early_rounds(self) -> bool:
        """Whether any number is from an earlier round than the table asks for."""
        return any(cell.round_note for cell in self.cells.values())

    @property
    def has_gains(self) -> bool:
        """Whether any number can be compared with the same method without selection."""
        return any(cell.gain for cell in self.cells.values())


def compare_with_paper(filled: FilledTable, *, digits: int = 2) -> Comparison:
    """Format a table next to the paper's numbers.

    Args:
        filled: The table with its numbers.
        digits: After the decimal point; numbers from 0 to 1 always have two.
    """
    digits = 2 if filled.table.unit in ("cosine", "share of images") else digits
    rows = tuple(row for row in filled.rows if any(_is_measured(filled, row, column) for column in filled.columns))
    columns = tuple(column for column in filled.columns if any(_is_measured(filled, row, column) for row in rows))
    cells = {
        (row, column): _make_cell(filled, row, column, digits)
        for row in rows
        for column in columns
        if (row, column) in filled.values
    }
    settings = dict.fromkeys(entry.column for entry in filled.table.entries)
    return Comparison(
        name=filled.table.name,
        title=filled.table.title,
        reference=filled.table.reference,
        unit="" if filled.table.unit == "mixed" else filled.table.unit,
        better=_better_label(filled),
        round_label=_round_label(filled),
        rows=rows,
        columns=columns,
        cells=cells,
        missing_rows=tuple(row for row in filled.rows if row not in rows),
        missing_columns=tuple(column for column in settings if column not in columns),
    )


def _make_cell(filled: FilledTable, row: str, column: str, digits: int) -> TableCell:
    value = filled.values[row, column]
    paper = "" if value.reference is None else format_number(value.reference, digits)
    if value.ours is None:
        return TableCell(paper=paper)
    base = _value_without_selection(filled, row, column)
    return TableCell(
        ours=format_number(value.ours, digits),
        round_note="" if value.complete else f"@{value.round}",
        std="" if value.deviation is None else f"±{format_number(value.deviation, digits)}",
        gain="" if base is None else format_signed(value.ours - base, digits),
        paper=paper,
        difference="" if value.difference is None or not value.complete else format_signed(value.difference, digits),
        is_best=_is_best(filled, value, column),
    )


def _value_without_selection(filled: FilledTable, row: str, column: str) -> float | None:
    """The number of the same method without selection, in the same round and over the same seeds."""
    value, plain = filled.values[row, column], (re.sub(r"\+\w+", "", row), row.partition("+")[0])
    found = [filled.values[name, column] for name in plain if name != row and (name, column) in filled.values]
    matching = [base.ours for base in found[:1] if base.round == value.round and _seeds(base) == _seeds(value)]
    return matching[0] if matching else None


def _seeds(value: Value) -> set[int]:
    return {run.seed for run in value.runs}


def _is_best(filled: FilledTable, value: Value, column: str) -> bool:
    found = [found for row in filled.rows if (found := filled.values.get((row, column)))]
    last = max(rival.round or 0 for rival in found if rival.ours is not None)
    rivals = [rival.ours for rival in found if rival.ours is not None and rival.round == last]
    lower = filled.table.is_lower_better(column)
    best = min(rivals) if lower else max(rivals)
    return lower is not None and len(rivals) > 1 and value.round == last and value.ours == best


def _better_label(filled: FilledTable) -> str:
    directions = {filled.table.is_lower_better(column) for column in filled.columns}
    return "lower is better" if directions == {True} else "higher is better" if directions == {False} else ""


def _round_label(filled: FilledTable) -> str:
    streams = [(entry.round, spec) for entry in filled.table.entries for spec in entry.specs if spec.task == "stream"]
    rounds, domains = {round for round, _ in streams}, {spec.domains for _, spec in streams}
    labels = [f"round {round}" for round in rounds if len(rounds) == 1]
    return ", ".join([*labels, *["held-out corruptions"] * (domains == {HELD_OUT})])


def _is_measured(filled: FilledTable, row: str, column: str) -> bool:
    value = filled.values.get((row, column))
    return value is not None and value.ours is not None
