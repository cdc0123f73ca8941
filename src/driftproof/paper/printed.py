"""The numbers that the paper prints, table by table."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from driftproof.validation import check_choice

__all__ = ["PaperRow", "PaperTable", "load_tables", "paper_table"]


@dataclass(frozen=True)
class PaperRow:
    """One method in one table: its numbers, gains printed in brackets, and numbers printed in bold, by column."""

    values: Mapping[str, float]
    deltas: Mapping[str, float]
    bold: frozenset[str]


@dataclass(frozen=True)
class PaperTable:
    """A table as printed, including misprints, which the notes list.

    Attributes:
        reference: Where it is in the paper.
        notes: Known misprints and ambiguities.
        better: "lower" or "higher", by column, in order.
        rows: By method; "TENT + Ours" is TENT with the paper's selection.

    Examples:
        >>> paper_table("T1_rounds50").value("TENT + Ours", "CIFAR-10-C/Open")
        15.77
    """

    reference: str
    notes: tuple[str, ...]
    better: Mapping[str, str]
    rows: Mapping[str, PaperRow]

    def value(self, row: str, column: str) -> float | None:
        """Return the number of a method; None if the paper has no such row."""
        check_choice(f"column of {self.reference}", column, self.better)
        return self.rows[row].values[column] if row in self.rows else None


def paper_table(name: str) -> PaperTable:
    """Return a table of the paper; a letter after the number is a part of a table, S is the supplement."""
    tables = load_tables()
    return tables[check_choice("table of the paper", name, tables)]


@cache
def load_tables() -> dict[str, PaperTable]:
    """Return all tables by name, in the paper's order."""
    text = resources.files("driftproof.paper").joinpath("printed.json").read_text(encoding="utf-8")
    return {entry["id"]: _parse_table(entry) for entry in json.loads(text)["tables"]}


def _parse_table(entry: dict[str, Any]) -> PaperTable:
    columns = entry["columns"]
    rows = {}
    for row in entry["rows"]:
        deltas = dict(zip(columns, row.get("printed_delta", [None] * len(columns)), strict=True))
        printed = {column: delta for column, delta in deltas.items() if delta is not None}
        values = dict(zip(columns, row["values"], strict=True))
        rows[row["method"]] = PaperRow(values, printed, frozenset(row.get("bold", ())))
    better = [entry["better"]] * len(columns) if isinstance(entry["better"], str) else entry["better"]
    return PaperTable(entry["pdf_ref"], tuple(entry["notes"]), dict(zip(columns, better, strict=True)), rows)
