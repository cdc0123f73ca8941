"""A checksum inside a Parquet file, checked before anything decodes it: a damaged one can end the process."""

import hashlib
import re
from pathlib import Path

from driftproof.errors import InputError, StateError
from driftproof.files import open_regular

__all__ = ["UNSEALED", "check_seal", "seal"]

_BLANK = b"0" * 64
_SEAL = re.compile(rb"driftproof\.sha256(.{2})(.{64})", re.DOTALL)  # two bytes say that 64 characters follow

UNSEALED = {"driftproof.sha256": _BLANK.decode()}
"""Metadata to write a file with that will be sealed."""


def seal(path: Path) -> None:
    """Put the checksum of a file, with zeros in the place of the checksum, into its metadata."""
    content = path.read_bytes()
    start = _find(content)
    assert start is not None  # written with `UNSEALED`
    path.write_bytes(content[:start] + _compute(content, start) + content[start + len(_BLANK) :])


def check_seal(path: Path) -> None:
    """Raise `StateError` if a sealed file has changed; files of earlier versions are not sealed."""
    try:
        with open_regular(path) as file:
            content = file.read()
    except InputError as error:
        raise StateError(str(error)) from error
    start = _find(content)
    if start is not None and content[start : start + len(_BLANK)] != _compute(content, start):
        raise StateError(f"Expected {path} as it was written, but it changed. Export it again.")


def _find(content: bytes) -> int | None:
    found = list(_SEAL.finditer(content))
    return found[-1].start(2) if found else None


def _compute(content: bytes, start: int) -> bytes:
    blank = content[:start] + _BLANK + content[start + len(_BLANK) :]
    return hashlib.sha256(blank).hexdigest().encode()
