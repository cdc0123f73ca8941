"""Tables as grids: rows and columns name what a spec has, and the paper's numbers stand next to ours."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from driftproof.bench.spec import Spec
from driftproof.bench.tables import Summary, Table, TableEntry
from driftproof.paper.printed import PaperTable, paper_table
from driftproof.paper.suites.settings import UNKNOWN, make_spec

__all__ = ["CIFAR", "COSTS", "SETS", "Cells", "add_settings", "list_rows", "make_grid", "make_table", "vary"]

Cells = Mapping[str, Mapping[str, Any]]
"""What the specs of each row or column have: fields, options of the method, and fields of the table's entry."""

CIFAR: Cells = {"CIFAR-10-C": {"images": "cifar10-c"}, "CIFAR-100-C": {"images": "cifar100-c"}}
SETS: Cells = {**CIFAR, "TinyImageNet-C": {"images": "tiny-imagenet-c"}}
COSTS: Cells = {"Memory (MB)": {"metric": "memory"}, "Time (ms)": {"metric": "milliseconds"}}

_PRINTED = {
    "source": "Source", "bn_adapt": "BN Adapt", "gce": "GCE", "conjugate": "Conjugate", "ent": "ENT", "tent": "TENT",
    "eata": "EATA", "swr": "SWR", "cotta": "CoTTA", "ttn": "TTN", "tent (no unknown pixels)": "TENT w/o open-set",
    "tent+crowd (logits)": "TENT + Ours (logit)", "msp": "MSP", "max_logit": "Max Logit", "energy": "Energy",
    "confidence_difference": "Ours",
}  # fmt: skip
"""Names of rows in the paper's tables."""

_SPEC_FIELDS = {field.name for field in fields(Spec)} | {"analyzed"}


def list_rows(*methods: str) -> Cells:
    """Return one row per method."""
    return {method: {"method": method} for method in methods}


def vary(method: str, symbol: str, option: str, *values: float) -> Cells:
    """Return one row per value of an option."""
    return {f"{method}, {symbol} = {value:g}": {"method": method, option: value} for value in values}


def add_settings(sets: Cells, *settings: str) -> Cells:
    """Return one column per dataset and setting; both settings if none is named."""
    pairs = itertools.product(sets.items(), settings or ("Closed", "Open"))
    return {f"{name}/{setting}": {**cell, "setting": setting} for (name, cell), setting in pairs}


def make_grid(rows: Cells, columns: Cells, **common: Any) -> tuple[TableEntry, ...]:  # noqa: ANN401
    """Return the entries of a grid; a column overrides its row, and both override what is common.

    Besides fields of a spec, `setting` is Closed, Open or both with a plus sign, `metric`, `round` and `domain` are
    fields of the entry, in which `{row}` is the row's name, and all other names are options of the method.
    """
    pairs = itertools.product(rows.items(), columns.items())
    return tuple(_make_entry(row, column, {**common, **cell, **other}) for (row, cell), (column, other) in pairs)


def _make_entry(row: str, column: str, cell: dict[str, Any]) -> TableEntry:
    settings = cell.pop("setting", "Closed").split("+")
    place = {name: cell.pop(name) for name in ("metric", "round", "domain") if name in cell}
    place |= {name: text.format(row=row) for name, text in place.items() if isinstance(text, str)}
    chosen = {name: cell.pop(name) for name in _SPEC_FIELDS & cell.keys()}
    unknown = {"Closed": None, "Open": UNKNOWN.get(chosen["images"])}
    specs = (make_spec(**chosen, unknown=unknown[setting]).with_options(**cell) for setting in settings)
    return TableEntry(row, column, tuple(specs), **place)


def make_table(
    name: str,
    title: str,
    entries: Iterable[TableEntry],
    paper: str | None = None,
    *,
    summaries: Mapping[str, Sequence[str]] | None = None,
    how: Any = "mean",  # noqa: ANN401
    unit: str = "error %",
    lower_is_better: bool | None = True,
) -> Table:
    """Make a table, with the paper's numbers if `paper` names one of its tables."""
    columns = tuple(Summary(column, tuple(of), how) for column, of in (summaries or {}).items())
    table = Table(name, title, tuple(entries), "", columns, unit, lower_is_better)
    return table if paper is None else _add_printed(table, paper_table(paper))


def _add_printed(table: Table, printed: PaperTable) -> Table:
    names = {entry.row: _find_row(entry.row, printed) for entry in table.entries}
    return replace(
        table,
        reference=printed.reference,
        lower_is_better={column: better == "lower" for column, better in printed.better.items()},
        entries=tuple(
            replace(entry, reference=printed.value(names[entry.row], entry.column)) for entry in table.entries
        ),
        summaries=tuple(
            replace(
                each, references={row: printed.rows[name].values[each.column] for row, name in names.items() if name}
            )
            for each in table.summaries
        ),
    )


def _find_row(row: str, printed: PaperTable) -> str:
    """Return the name of a row in the paper's table; empty if it has none."""
    base, plus, _ = row.partition("+")
    name = _PRINTED.get(row) or f"{_PRINTED.get(base)}{' + Ours' * bool(plus)}"
    return next((found for found in (name, f"{name} (softmax)") if found in printed.rows), "")
