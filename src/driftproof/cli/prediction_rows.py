"""Write predictions as CSV, JSON Lines or Parquet."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.validation import check_choice

__all__ = ["Row", "make_columns", "open_writer"]


Cell = str | int | float | bool | None
Row = tuple[Cell, ...]
WriteRows = Callable[[Sequence[Row]], None]


def make_columns(*, names: bool = False, top_k: int = 1, labels: bool = False) -> dict[str, type]:
    """Return the columns of the table of predictions, with their types.

    - `path`: the image file;
    - `predicted`: index of the predicted class, `class` its name; empty if the logits are not finite;
    - `probability`: probability of that class; `predicted_2`, `class_2`, `probability_2`, … for the next likely ones;
    - `novelty`: novelty score, larger is more novel;
    - `selected`: whether the step learned from the image;
    - `quarantined`: whether the image was kept out because it is not finite or far from all others;
    - `alarm`: whether the novelty exceeds the threshold; empty without a threshold;
    - `label`: the true class; empty where unknown.

    Args:
        names: Whether class names are known.
        top_k: How many of the most likely classes to list.
        labels: Whether labels are known.

    Examples:
        >>> list(make_columns(top_k=2))[1:5]
        ['predicted', 'probability', 'predicted_2', 'probability_2']
    """
    columns: dict[str, type] = {"path": str}
    for rank in range(1, top_k + 1):
        suffix = "" if rank == 1 else f"_{rank}"
        columns |= {f"predicted{suffix}": int}
        columns |= {f"class{suffix}": str} if names else {}
        columns |= {f"probability{suffix}": float}
    columns |= {"novelty": float, "selected": bool, "quarantined": bool, "alarm": bool}
    return columns | ({"label": int} if labels else {})


@contextmanager
def open_writer(path: Path, columns: Mapping[str, type]) -> Iterator[WriteRows]:
    """Open a table for writing; yields a function that takes rows. The file is written atomically.

    Args:
        path: Output file; its suffix chooses the format: `.csv`, `.jsonl` or `.parquet`. Missing folders are created.
        columns: Names and types of the columns.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with open_writer(Path(folder, "seen.csv"), {"path": str, "novelty": float, "alarm": bool}) as write:
        ...         write([("a.png", 0.5, True), ("b.png", None, False)])
        ...     print(Path(folder, "seen.csv").read_text())
        path,novelty,alarm
        a.png,0.5,true
        b.png,,false
        <BLANKLINE>
    """
    make_writer = _WRITERS[check_choice("kind of table", path.suffix.lower(), _WRITERS)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished, make_writer(unfinished, columns) as write:
        yield write


@contextmanager
def _csv_writer(path: Path, columns: Mapping[str, type]) -> Iterator[WriteRows]:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        yield lambda rows: table.writerows([_format_cell(value) for value in row] for row in rows)


def _format_cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


@contextmanager
def _jsonl_writer(path: Path, columns: Mapping[str, type]) -> Iterator[WriteRows]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda rows: file.writelines(f"{json.dumps(dict(zip(columns, row, strict=True)))}\n" for row in rows)


@contextmanager
def _parquet_writer(path: Path, columns: Mapping[str, type]) -> Iterator[WriteRows]:
    polars, collected = require("polars", "Writing Parquet", "'driftproof[report]'"), list[Row]()
    yield collected.extend
    polars.DataFrame(collected, schema=dict(columns), orient="row").write_parquet(path)


_WRITERS = {".csv": _csv_writer, ".jsonl": _jsonl_writer, ".parquet": _parquet_writer}
