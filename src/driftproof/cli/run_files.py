"""Files of an unfinished run: each carries a checksum, and a damaged one is refused by name."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftproof.errors import InputError, StateError
from driftproof.files import atomic_write, open_regular

__all__ = ["decode", "encode", "make_damage_error", "read_checked", "read_json", "write_checked", "write_json"]

_DIGITS = 64


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object and its checksum atomically."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps({**content, "sha256": _compute(encode(content))}))


def read_json(path: Path) -> dict[str, Any]:
    """Return an object that `write_json` wrote; raise `StateError` if it is damaged."""
    content = decode(_read(path), path)
    if not isinstance(content, dict) or content.pop("sha256", None) != _compute(encode(content)):
        raise make_damage_error(path)
    return content


def write_checked(path: Path, content: bytes) -> None:
    """Write a checksum and the content after it atomically."""
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(_compute(content).encode() + content)


def read_checked(path: Path) -> bytes:
    """Return what `write_checked` wrote; raise `StateError` if it is damaged."""
    found = _read(path)
    content = found[_DIGITS:]
    if found[:_DIGITS] != _compute(content).encode():
        raise make_damage_error(path)
    return content


def encode(content: object) -> bytes:
    """Return JSON."""
    return json.dumps(content).encode()


def decode(content: bytes, path: Path) -> Any:  # noqa: ANN401  # JSON holds anything
    """Read JSON of a file; raise `StateError` if it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise make_damage_error(path) from error


def make_damage_error(path: Path) -> StateError:
    """Return the error for a file of a run that cannot be read."""
    return StateError(f"Expected {path} to be what a run left, but it is damaged. Start anew with `--force`.")


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read()
    except InputError as error:
        raise StateError(str(error)) from error


def _compute(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
