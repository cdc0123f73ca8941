"""The numbers that the paper prints, table by table."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from driftproof.validation import check_choice

__all__ = ["PAPER_TABLES", "PaperRow", "PaperTable", "paper_table"]

PAPER_TABLES: tuple[str, ...] = (
    "T1_rounds50",
    "T2_round1",
    "T3a_seg_continual",
    "T4_seg_fixed",
    "T5a_ood_incl",
    "T5b_ood_excl",
    "T6_cost_cls",
    "T7a_arch_long",
    "T7b_arch_short",
    "T8a_lr",
    "T8b_bs",
    "S1_seg_no_openset",
    "S2a_imagenetc_long",
    "S2b_imagenetc_short",
    "S3a_cotta_cls",
    "S3b_cotta_seg",
    "S4_cost_seg",
    "S5_logit_variant",
)
"""In the paper's order; a letter after the number is a part of a table, S is the supplement."""


@dataclass(frozen=True)
class PaperRow:
    """One method in one table.

    Attributes:
        method: As printed; "TENT + Ours" is TENT with the paper's selection.
        values: By column.
        deltas: Gains printed in brackets, by column; empty if the row has none.
        bold: Columns printed in bold.
    """

    method: str
    values: Mapping[str, float]
    deltas: Mapping[str, float]
    bold: frozenset[str]


@dataclass(frozen=True)
class PaperTable:
    """A table as printed, including misprints, which the notes list.

    Attributes:
        id: One of `PAPER_TABLES`.
        reference: Where it is in the paper.
        caption: Short caption.
        setting: Experimental setting.
        notes: Known misprints and ambiguities.
        columns: In order.
        units: By column.
        better: "lower" or "higher", by column.
        rows: By method, in order.

    Examples:
        >>> table = paper_table("T1_rounds50")
        >>> table.value("TENT + Ours", "CIFAR-10-C/Open"), table.delta("TENT + Ours", "CIFAR-10-C/Open")
        (15.77, -69.45)
    """

    id: str
    reference: str
    caption: str
    setting: str
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    units: Mapping[str, str]
    better: Mapping[str, str]
    rows: Mapping[str, PaperRow]

    def value(self, row: str, column: str) -> float | None:
        """Return the number of a method; None if the paper has no such row."""
        self._check_column(column)
        return self.rows[row].values[column] if row in self.rows else None

    def delta(self, row: str, column: str) -> float | None:
        """Return the printed gain over the method without selection; None if there is none."""
        self._check_column(column)
        return self.rows[row].deltas.get(column) if row in self.rows else None

    def _check_column(self, column: str) -> None:
        check_choice(f"column of {self.id}", column, self.columns)


def paper_table(id: str) -> PaperTable:
    """Return a table of the paper.

    Args:
        id: One of `PAPER_TABLES`.

    Examples:
        >>> paper_table("T8a_lr").caption
        'Robustness to learning rate'
    """
    return _load_tables()[check_choice("table of the paper", id, PAPER_TABLES)]


@cache
def _load_tables() -> dict[str, PaperTable]:
    text = resources.files("driftproof.paper").joinpath("printed.json").read_text(encoding="utf-8")
    return {entry["id"]: _parse_table(entry) for entry in json.loads(text)["tables"]}


def _parse_table(entry: dict[str, Any]) -> PaperTable:
    columns = tuple(entry["columns"])
    rows = [_parse_row(row, columns) for row in entry["rows"]]
    return PaperTable(
        id=entry["id"],
        reference=entry["pdf_ref"],
        caption=entry["caption_short"],
        setting=entry["setting"],
        notes=tuple(entry["notes"]),
        columns=columns,
        units=_by_column(columns, entry["unit"]),
        better=_by_column(columns, entry["better"]),
        rows=MappingProxyType({row.method: row for row in rows}),
    )


def _parse_row(entry: dict[str, Any], columns: tuple[str, ...]) -> PaperRow:
    deltas = zip(columns, entry.get("printed_delta", [None] * len(columns)), strict=True)
    return PaperRow(
        method=entry["method"],
        values=MappingProxyType(dict(zip(columns, entry["values"], strict=True))),
        deltas=MappingProxyType({column: delta for column, delta in deltas if delta is not None}),
        bold=frozenset(entry.get("bold", [])),
    )


def _by_column(columns: tuple[str, ...], values: str | list[str]) -> Mapping[str, str]:
    each = [values] * len(columns) if isinstance(values, str) else values
    return MappingProxyType(dict(zip(columns, each, strict=True)))
