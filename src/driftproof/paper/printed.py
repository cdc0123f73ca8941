"""The numbers that the paper prints, table by table."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from driftproof.validation import check_choice

__all__ = ["PaperTable", "load_tables", "paper_table", "read_json"]


class PaperTable(NamedTuple):
    """A table as printed, including misprints, which the notes list.

    Attributes:
        reference: Where it is in the paper.
        better: "lower" or "higher", by column, in order.
        rows: Numbers by method and column; "TENT + Ours" is TENT with the paper's selection.
        gains: Gains printed in brackets, by method and column.
        notes: Known misprints and ambiguities.

    Examples:
        >>> paper_table("T1_rounds50").rows["TENT + Ours"]["CIFAR-10-C/Open"]
        15.77
    """

    reference: str
    better: Mapping[str, str]
    rows: Mapping[str, Mapping[str, float]]
    gains: Mapping[str, Mapping[str, float]]
    notes: Sequence[str] = ()


def paper_table(name: str) -> PaperTable:
    """Return a table of the paper; a letter after the number is a part of a table, S is the supplement."""
    return load_tables()[check_choice("table of the paper", name, load_tables())]


@cache
def load_tables() -> dict[str, PaperTable]:
    """Return all tables by name, in the paper's order."""
    return {name: _parse_table(**table) for name, table in read_json("printed.json").items()}


def _parse_table(*, columns: list[str], better: str | list[str], rows: list[Any], **others: Any) -> PaperTable:  # noqa: ANN401
    directions = [better] * len(columns) if isinstance(better, str) else better
    numbers = {method: dict(zip(columns, values, strict=True)) for method, values, *_ in rows}
    printed = {method: zip(columns, gains[0], strict=True) for method, _, *gains in rows if gains}
    gains = {method: {key: gain for key, gain in row if gain is not None} for method, row in printed.items()}
    return PaperTable(better=dict(zip(columns, directions, strict=True)), rows=numbers, gains=gains, **others)


@cache
def read_json(name: str) -> Any:  # noqa: ANN401
    """Return a file of this package; do not change what is returned."""
    return json.loads(resources.files("driftproof.paper").joinpath(name).read_text(encoding="utf-8"))
