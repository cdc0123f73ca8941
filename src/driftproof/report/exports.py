"""The rows as files for other programs: everything that is known of each, in one flat table."""

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
    """Every row of a results folder with its cell's spec, the method in its own words, and how it was measured.

    Options of the method are called `option/lr`, its own words `protocol/loss`, what it found in source images
    `found/threshold`, and the precision that was computed with `step/precision`, as the selection has a precision too.
    All rows have the same keys, in the same order; what a row does not have is None.
    """
    rows = [row for spec, cell in results.runs.items() for row in _rows(spec, cell)]
    keys = sorted({key: None for row in rows for key in row}, key=_section)
    return [{key: row.get(key) for key in keys} for row in rows]


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write flat rows as CSV; None is an empty field.

    Args:
        rows: All with the same keys.
        path: Where to.
    """
    with atomic_write(path) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write flat rows as Parquet. A column whose values are of several kinds becomes text.

    Args:
        rows: All with the same keys.
        path: Where to.
    """
    purpose, install = "Writing Parquet", "'driftproof[report]'"
    arrow, parquet = (require(module, purpose, install) for module in ("pyarrow", "pyarrow.parquet"))
    columns = {key: _of_one_kind([row[key] for row in rows]) for key in rows[0]}
    with atomic_write(path) as unfinished:
        parquet.write_table(arrow.table(columns), unfinished)


def _rows(spec: Spec, cell: RunRecord) -> list[Row]:
    known = {"cell": spec.name, **spec.as_data()}
    known |= {"domains": " ".join(spec.domains), "measures": " ".join(spec.measures), "setting": spec.setting}
    known |= {f"option/{key}": value for key, value in known.pop("options").items()}
    protocol = {f"protocol/{key}": value for key, value in cell.protocol.items()}
    measured = zip(cell.rows, cell.conditions, strict=False)
    return [known | protocol | row | _conditions(how) for row, how in measured]


def _conditions(how: Row) -> Row:
    found = {f"found/{name}": value for name, value in how.get("found", {}).items()}
    return found | {"step/precision" if key == "precision" else key: how[key] for key in how if key != "found"}


def _section(key: str) -> int:
    return 1 if key.startswith("option/") else 2 if key.startswith("protocol/") else 0


def _of_one_kind(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return values
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
