"""Which images came in which batch, so that a resumed run forms the same batches again."""

import zlib
from collections.abc import Sequence
from pathlib import Path

from driftproof.cli.run_files import decode, encode, make_damage_error
from driftproof.files import atomic_write

__all__ = ["Journal"]


class Journal:
    """A file with a line for each batch since the oldest kept state: the position of its first image, and its files.

    Each line ends with a checksum. A line with position None holds images that had arrived but were in no batch when
    the run was stopped.

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
        return [self._decode(line) for line in lines]

    def _decode(self, line: bytes) -> tuple[int | None, list[str]]:
        match decode(line, self.path):
            case [first, files, checksum] if checksum == _compute(first, files):
                return first, files
        raise make_damage_error(self.path)


def _encode(first: int | None, files: Sequence[str]) -> bytes:
    return encode([first, list(files), _compute(first, files)]) + b"\n"


def _compute(first: int | None, files: Sequence[str]) -> int:
    return zlib.crc32(encode([first, files]))
