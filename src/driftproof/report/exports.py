"""Export all rows as one flat table, as CSV or Parquet."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftproof.bench import Results, Spec
from driftproof.bench.archive import RunRecord
from driftproof.bench.store import Row
from driftproof.files import atomic_write
from driftproof.optional import require

__all__ = ["flat_rows", "write_csv", "write_parquet"]


def flat_rows(results: Results) -> list[Row]:
    """Every row of a results folder with the spec, protocol and conditions of its run.

    Options of the method are named `option/lr`, its components `protocol/loss`, values it estimated from source images
    `found/threshold`, and the numerical precision `step/precision`, because the selection has a precision too. All rows
    have the same keys in the same order; missing values are None.
    """
    rows = [row for spec, run in results.runs.items() for row in _rows(spec, run)]
    keys = sorted({key: None for row in rows for key in row}, key=_column_group)
    return [{key: row.get(key) for key in keys} for row in rows]


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write flat rows as CSV; None becomes an empty field.

    Args:
        rows: All with the same keys.
        path: Of the file.
    """
    with atomic_write(path) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write flat rows as Parquet; a column of mixed types becomes text.

    Args:
        rows: All with the same keys.
        path: Of the file.
    """
    purpose, install = "Writing Parquet", "'driftproof[report]'"
    arrow, parquet = (require(module, purpose, install) for module in ("pyarrow", "pyarrow.parquet"))
    columns = {key: _unify_types([row[key] for row in rows]) for key in rows[0]}
    with atomic_write(path) as unfinished:
        parquet.write_table(arrow.table(columns), unfinished)


def _rows(spec: Spec, run: RunRecord) -> list[Row]:
    fields = {"cell": spec.name, **spec.as_data()}
    fields |= {"domains": " ".join(spec.domains), "measures": " ".join(spec.measures), "setting": spec.setting}
    fields |= {f"option/{key}": value for key, value in fields.pop("options").items()}
    protocol = {f"protocol/{key}": value for key, value in run.protocol.items()}
    pairs = zip(run.rows, run.conditions, strict=False)
    return [fields | protocol | row | _rename_conditions(conditions) for row, conditions in pairs]


def _rename_conditions(conditions: Row) -> Row:
    found = {f"found/{name}": value for name, value in conditions.get("found", {}).items()}
    others = {key: value for key, value in conditions.items() if key != "found"}
    return found | {"step/precision" if key == "precision" else key: value for key, value in others.items()}


def _column_group(key: str) -> int:
    return 1 if key.startswith("option/") else 2 if key.startswith("protocol/") else 0


def _unify_types(values: list[Any]) -> list[Any]:
    types = {type(value) for value in values if value is not None}
    if len(types) < 2:
        return values
    if types == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
