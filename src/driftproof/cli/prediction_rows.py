"""Write predictions as CSV, JSON Lines or Parquet."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.validation import check_choice

__all__ = ["PredictionRow", "open_writer"]

_ROWS_PER_GROUP = 2**16


class PredictionRow(NamedTuple):
    """The prediction for one image.

    Attributes:
        path: The image file.
        predicted: Index of the predicted class; None if the logits are not finite.
        probability: Probability of that class.
        novelty: Novelty score; larger is more novel.
        selected: Whether the image was selected for adaptation.
        alarm: Whether the novelty exceeds the threshold; None without a threshold.
    """

    path: str
    predicted: int | None
    probability: float | None
    novelty: float | None
    selected: bool
    alarm: bool | None


WriteRows = Callable[[Sequence[PredictionRow]], None]


@contextmanager
def open_writer(path: Path) -> Iterator[WriteRows]:
    """Open a table for writing; yields a function that takes rows. The file is written atomically.

    Args:
        path: Output file; its suffix chooses the format: `.csv`, `.jsonl` or `.parquet`. Missing folders are created.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with open_writer(Path(folder, "seen.csv")) as write:
        ...         write([PredictionRow("a.png", 3, 0.75, 0.5, True, None)])
        ...     print(Path(folder, "seen.csv").read_text())
        path,predicted,probability,novelty,selected,alarm
        a.png,3,0.75,0.5,true,
        <BLANKLINE>
    """
    make_writer = _WRITERS[check_choice("kind of table", path.suffix.lower(), _WRITERS)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished, make_writer(unfinished) as write:
        yield write


@contextmanager
def _csv_writer(path: Path) -> Iterator[WriteRows]:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(PredictionRow._fields)
        yield lambda rows: table.writerows([_format_cell(value) for value in row] for row in rows)


def _format_cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


@contextmanager
def _jsonl_writer(path: Path) -> Iterator[WriteRows]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda rows: file.writelines(f"{json.dumps(row._asdict())}\n" for row in rows)


@contextmanager
def _parquet_writer(path: Path) -> Iterator[WriteRows]:
    purpose, install = "Writing Parquet", "'driftproof[report]'"
    arrow, parquet = (require(module, purpose, install) for module in ("pyarrow", "pyarrow.parquet"))
    types = (arrow.string(), arrow.int64(), arrow.float64(), arrow.float64(), arrow.bool_(), arrow.bool_())
    schema = arrow.schema(list(zip(PredictionRow._fields, types, strict=True)))
    pending: list[PredictionRow] = []

    def write(rows: Sequence[PredictionRow], min_rows: int = _ROWS_PER_GROUP) -> None:
        pending.extend(rows)
        if len(pending) >= min_rows:
            writer.write_table(arrow.Table.from_pylist([row._asdict() for row in pending], schema))
            pending.clear()

    with parquet.ParquetWriter(path, schema) as writer:
        yield write
        write([], min_rows=0)


_WRITERS = {".csv": _csv_writer, ".jsonl": _jsonl_writer, ".parquet": _parquet_writer}
