"""Which images came in which batch, so that a resumed run forms the same batches again."""

import json
from collections.abc import Sequence
from pathlib import Path

from driftproof.errors import StateError
from driftproof.files import atomic_write

__all__ = ["Journal"]


class Journal:
    """A file with a line for each batch since the oldest kept state: the position of its first image, and its files.

    A line with position None holds images that had arrived but were in no batch when the run was stopped.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, first: int | None, files: Sequence[str]) -> None:
        """Add a batch, or images in no batch; among these, an empty name ends a batch."""
        with self.path.open("ab", buffering=0) as file:
            file.write(_encode(first, files))

    def read(self, first: int = 0) -> tuple[list[tuple[int, list[str]]], list[str]]:
        """Return the batches from a position on, and the images that are in no batch yet."""
        batches: dict[int, list[str]] = {}
        waiting: list[str] = []
        for start, files in self._read_lines():
            if start is None:
                waiting += files
                continue
            batches[start] = files
            for file in files:
                if file in waiting:
                    waiting.remove(file)
        return sorted((start, files) for start, files in batches.items() if start >= first), waiting

    def prune(self, first: int) -> None:
        """Forget batches before a position."""
        batches, waiting = self.read(first)
        with atomic_write(self.path) as unfinished:
            lines = [_encode(start, files) for start, files in batches]
            lines += [_encode(None, waiting)] if waiting else []
            unfinished.write_bytes(b"".join(lines))

    def _read_lines(self) -> list[tuple[int | None, list[str]]]:
        if not self.path.is_file():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]  # what follows the last line break was not written whole
        try:
            return [(first, files) for first, files in map(json.loads, lines)]
        except (ValueError, TypeError) as error:
            raise StateError(
                f"Expected {self.path} to be what a run left, but it is damaged. Start anew with `--force`."
            ) from error


def _encode(first: int | None, files: Sequence[str]) -> bytes:
    return json.dumps([first, list(files)]).encode() + b"\n"
