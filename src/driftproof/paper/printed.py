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
        caption: Short caption.
        setting: Experimental setting.
        notes: Known misprints and ambiguities.
        units: By column.
        better: "lower" or "higher", by column, in order.
        rows: By method, as printed; "TENT + Ours" is TENT with the paper's selection.

    Examples:
        >>> paper_table("T1_rounds50").value("TENT + Ours", "CIFAR-10-C/Open")
        15.77
    """

    reference: str
    caption: str
    setting: str
    notes: tuple[str, ...]
    units: Mapping[str, str]
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
    def by_column(values: Any) -> dict[str, Any]:  # noqa: ANN401
        return dict(zip(entry["columns"], values, strict=True))

    def each(values: str | list[str]) -> dict[str, str]:
        return by_column([values] * len(entry["columns"]) if isinstance(values, str) else values)

    rows = {}
    for row in entry["rows"]:
        deltas = by_column(row["printed_delta"]) if "printed_delta" in row else {}
        printed = {column: delta for column, delta in deltas.items() if delta is not None}
        rows[row["method"]] = PaperRow(by_column(row["values"]), printed, frozenset(row.get("bold", ())))
    return PaperTable(
        entry["pdf_ref"], entry["caption_short"], entry["setting"], tuple(entry["notes"]),
        each(entry["unit"]), each(entry["better"]), rows,
    )  # fmt: skip
