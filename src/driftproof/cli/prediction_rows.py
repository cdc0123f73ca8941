"""Write predictions as CSV, JSON Lines or Parquet."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from driftproof.errors import StateError
from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.validation import check_choice

__all__ = ["Cell", "Row", "RowFile", "check_format", "make_columns", "read_rows", "sort_rows", "write_table"]


Cell = str | int | float | bool | None
Row = tuple[Cell, ...]

_FORMULA = re.compile(r"'*[=+\-@\t]")
_FORMATS = (".csv", ".jsonl", ".parquet")


def make_columns(*, names: bool = False, top_k: int = 1, labels: bool = False) -> dict[str, type]:
    """Return the columns of the table of predictions, with their types.

    - `index`: position of the image in the folder's order, from 0;
    - `path`: the image file;
    - `predicted`: index of the predicted class, `class` its name; empty if the logits are not finite;
    - `probability`: probability of that class; `predicted_2`, `class_2`, `probability_2`, … for the next likely ones;
    - `novelty`: novelty score, larger is more novel;
    - `selected`: whether the step learned from the image;
    - `quarantined`: whether the image was kept out because it is not finite or far from all others;
    - `alarm`: whether the novelty exceeds the threshold; empty without a threshold;
    - `health`: state of health after the batch; empty where nothing measured it;
    - `label`: the true class; empty where unknown;
    - `error`: why there is no prediction; empty if there is one.

    Args:
        names: Whether class names are known.
        top_k: How many of the most likely classes to list.
        labels: Whether labels are known.

    Examples:
        >>> list(make_columns(top_k=2))[2:6]
        ['predicted', 'probability', 'predicted_2', 'probability_2']
    """
    columns: dict[str, type] = {"index": int, "path": str}
    for rank in range(1, top_k + 1):
        suffix = "" if rank == 1 else f"_{rank}"
        columns |= {f"predicted{suffix}": int}
        columns |= {f"class{suffix}": str} if names else {}
        columns |= {f"probability{suffix}": float}
    columns |= {"novelty": float, "selected": bool, "quarantined": bool, "alarm": bool, "health": str}
    return columns | ({"label": int} if labels else {}) | {"error": str}


def check_format(path: Path) -> str:
    """Return the format that a table's suffix names: `.csv`, `.jsonl` or `.parquet`; raise an error for others."""
    kind = check_choice("kind of table", path.suffix.lower(), _FORMATS)
    if kind == ".parquet":
        require("polars", "Writing Parquet", "'driftproof[report]'")
    return kind


class RowFile:
    """A CSV or JSON Lines file that grows by whole batches of rows.

    The file is created with the first rows. Each batch reaches the operating system before `append` returns. If it
    cannot be written whole, none of it stays in the file.

    Args:
        path: The file.
        columns: Names and types of the columns.
        length: Number of bytes to continue after; 0 starts a new file.

    Attributes:
        length: Number of bytes written.
    """

    def __init__(self, path: Path, columns: Mapping[str, type], length: int = 0) -> None:
        self.path, self.columns, self.length = path, columns, length
        if length and (not path.is_file() or path.stat().st_size < length):
            raise StateError(
                f"Expected the first {length} bytes of rows in {path}, but they are missing. Start anew with `--force`."
            )

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows at the end and flush them."""
        is_csv = self.path.suffix.lower() == ".csv"
        header = "" if self.length or not is_csv else _encode_csv([tuple(self.columns)])
        content = (header + (_encode_csv(rows) if is_csv else _encode_jsonl(rows, self.columns))).encode()
        with self.path.open("r+b" if self.length else "wb", buffering=0) as file:
            file.truncate(self.length)
            file.seek(self.length)
            try:
                written = 0
                while written < len(content):
                    written += file.write(content[written:]) or 0
            except OSError as error:
                file.truncate(self.length)
                error.filename = str(self.path)
                raise
        self.length += len(content)


def read_rows(path: Path, columns: Mapping[str, type], length: int | None = None) -> Iterator[Row]:
    """Read the rows of a CSV or JSON Lines file as they were written.

    Args:
        path: The file.
        columns: Names and types of the columns.
        length: Read so many bytes; None reads the whole file.
    """
    with path.open("rb") as file:
        lines = (line.decode() for line in _take_bytes(file, length))
        if path.suffix.lower() == ".csv":
            rows = csv.reader(lines)
            next(rows, None)
            yield from (tuple(map(_parse_cell, row, columns.values())) for row in rows)
        else:
            yield from (tuple(json.loads(line).values()) for line in lines)


def _take_bytes(file: BinaryIO, length: int | None) -> Iterator[bytes]:
    for line in file:
        if length is not None:
            length -= len(line)
            if length < 0:
                return
        yield line


def sort_rows(rows: RowFile, out: Path, folder: Path) -> None:
    """Write the rows to `out` in the order of their first column, atomically; nothing to do if they are there.

    Args:
        rows: The rows.
        out: The table.
        folder: Folder for the unfinished table, on the same disk.
    """
    ordered = sorted(read := list(read_rows(rows.path, rows.columns)), key=lambda row: row[0] or 0)
    if out != rows.path or ordered != read:
        write_table(folder / f"sorted{out.suffix}", rows.columns, ordered)
        (folder / f"sorted{out.suffix}").replace(out)


def write_table(path: Path, columns: Mapping[str, type], rows: Iterable[Row]) -> None:
    """Write a whole table atomically; the suffix chooses the format.

    Text in a CSV that a spreadsheet would take for a formula gets an apostrophe in front. Line breaks become a
    backslash and a letter, so that a row is a line.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     out = Path(folder, "seen.csv")
        ...     write_table(out, {"path": str, "novelty": float}, [("a.png", -0.5), ("=b.png", None)])
        ...     print(out.read_text())
        path,novelty
        a.png,-0.5
        '=b.png,
        <BLANKLINE>
    """
    kind = check_format(path)
    with atomic_write(path) as unfinished:
        if kind == ".parquet":
            polars = require("polars", "Writing Parquet", "'driftproof[report]'")
            polars.DataFrame(list(rows), schema=dict(columns), orient="row").write_parquet(unfinished)
        else:
            text = _encode_csv([tuple(columns), *rows]) if kind == ".csv" else _encode_jsonl(rows, columns)
            unfinished.write_bytes(text.encode())


def _encode_csv(rows: Iterable[Row]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_format_cell, row) for row in rows)
    return text.getvalue()


def _encode_jsonl(rows: Iterable[Row], columns: Iterable[str]) -> str:
    return "".join(f"{json.dumps(dict(zip(columns, row, strict=True)))}\n" for row in rows)


def _format_cell(value: Cell) -> Cell:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        value = value.replace("\r", "\\r").replace("\n", "\\n")  # one row, one line
        return f"'{value}" if _FORMULA.match(value) else value
    return value


def _parse_cell(text: str, kind: type) -> Cell:
    if not text:
        return None
    if kind is bool:
        return text == "true"
    if kind is str:
        return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
    value: int | float = kind(text)
    return value
