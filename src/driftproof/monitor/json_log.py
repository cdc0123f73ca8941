"""Reports and notices as JSON Lines, in files of bounded size."""

import glob
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from logging import LogRecord, makeLogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from driftproof.errors import ConfigurationError
from driftproof.monitor.base import BatchReport, Exporter, Notice

__all__ = ["JsonLog", "LogReader", "read_log"]

_MAX_LINE = 1 << 20


class JsonLog(Exporter):
    """Writes one JSON object per line: reports with type "batch", notices with type "notice".

    A file that would grow beyond `max_bytes` becomes `run.jsonl.1`, the one before `run.jsonl.2`, and so on. Lines
    reach the operating system before `export` returns.

    Args:
        path: The file; lines are added to an existing one.
        batches: Whether to write reports; without them the file holds alarms, guard events and other notices only.
        max_bytes: Size at which a new file begins.
        keep: How many older files to keep.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from driftproof.monitor import Monitor
        >>> with TemporaryDirectory() as folder:
        ...     with Monitor(JsonLog(Path(folder, "run.jsonl"))) as monitor:
        ...         monitor.notify("run", "the run began")
        ...     [line["message"] for line in read_log(Path(folder, "run.jsonl"))]
        ['the run began']
    """

    def __init__(self, path: Path, *, batches: bool = True, max_bytes: int = 50_000_000, keep: int = 5) -> None:
        if max_bytes < 1 or keep < 1:
            raise ConfigurationError(
                f"Expected `max_bytes` and `keep` to be at least 1, but got {max_bytes} and {keep}."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_line(path)
        self._batches = batches
        self._file = _LineFile(path, maxBytes=max_bytes, backupCount=keep, encoding="utf-8")

    def export(self, report: BatchReport | None, notices: Sequence[Notice]) -> None:
        """Write a report and its notices."""
        lines: list[dict[str, Any]] = [notice.to_json() for notice in notices]
        if report is not None and self._batches:
            lines.insert(0, report.to_json())
        for line in lines:
            self._file.emit(makeLogRecord({"msg": json.dumps(line, allow_nan=False, default=str)}))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _LineFile(RotatingFileHandler):
    """A rotating file whose errors reach the caller."""

    def handleError(self, record: LogRecord) -> None:  # noqa: N802  # as logging names it
        raise  # called while an exception is handled


def _end_line(path: Path) -> None:
    """End a line that a killed process did not write whole."""
    if path.is_file() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the lines of a log and of its older files, oldest first; lines that are not whole are left out."""
    return LogReader(path).read()


class LogReader:
    """Reads a log that may still grow.

    Args:
        path: The newest file of the log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._offset = -1, 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Iterate over the lines since the last call, over all of them at first."""
        files = self._list_files()
        inodes = [file.stat().st_ino for file in files]
        start = inodes.index(self._inode) if self._inode in inodes else 0
        for file, inode in zip(files[start:], inodes[start:], strict=True):
            if inode != self._inode:
                self._inode, self._offset = inode, 0
            with file.open("rb") as lines:
                lines.seek(self._offset)
                while (line := lines.readline(_MAX_LINE)).endswith(b"\n") or len(line) == _MAX_LINE:
                    self._offset += len(line)
                    with suppress(ValueError):
                        content = json.loads(line)
                        if isinstance(content, dict):
                            yield content

    def _list_files(self) -> list[Path]:
        older = (file for file in self._path.parent.glob(f"{glob.escape(self._path.name)}.*"))
        numbered = sorted((int(file.suffix[1:]), file) for file in older if file.suffix[1:].isdecimal())
        return [*(file for _, file in reversed(numbered)), self._path]
