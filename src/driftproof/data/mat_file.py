"""A reader of numeric arrays in MATLAB 5 files, which refuses whatever is broken.

A file is a header of 128 bytes and a sequence of elements. An element is a tag, its type and length, and its content.
A matrix is an element of elements: flags, dimensions, name and values. It may be compressed as a whole.
"""

import math
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
import numpy.typing as npt

from driftproof.errors import InputError
from driftproof.files import check_regular_file

__all__ = ["read_mat"]

_STORED_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_NUMERIC_CLASSES = range(6, 16)
_COMPLEX = 0x08
_MAX_VARIABLES = 1000
_MAX_BYTES = 1 << 28
_MAX_DIMENSIONS = 32
_MAX_NAME = 4096
_CHUNK = 1 << 16


class _Source(Protocol):
    def read(self, count: int, /) -> bytes: ...


class _Inflated:
    """The content of a compressed element, inflated only as far as it is read."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file, self._left = file, length
        self._inflater = zlib.decompressobj()
        self._pending = b""

    def read(self, count: int, /) -> bytes:
        """Return `count` bytes, fewer only at the end."""
        pieces, missing = [], count
        while missing and not self._inflater.eof:
            if not self._pending:
                self._pending = self._file.read(min(self._left, _CHUNK))
                self._left -= len(self._pending)
                if not self._pending:
                    break
            piece = self._inflater.decompress(self._pending, min(missing, _CHUNK))
            self._pending = self._inflater.unconsumed_tail
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)


def read_mat(path: Path, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Return those of the named variables that a MATLAB 5 file holds, in the types they are stored in.

    Args:
        path: The file.
        names: Names of real numeric arrays, each of at most 256 MiB.

    Raises:
        InputError: If the file is no complete MATLAB 5 file, or a named variable is something else.
    """
    check_regular_file(path)
    try:
        with path.open("rb") as file:
            return _read_variables(file, path.stat().st_size, set(names))
    except (ValueError, OverflowError, zlib.error) as error:
        raise InputError(
            f"Expected {path} to be a complete MATLAB 5 file, but it cannot be read: {error}. Download it again."
        ) from error


def _read_variables(file: BinaryIO, length: int, names: set[str]) -> dict[str, npt.NDArray[Any]]:
    header = _read(file, 128)
    if header[126:] not in (b"IM", b"MI"):
        raise ValueError("its header is not that of MATLAB 5")
    order: Literal["little", "big"] = "little" if header[126:] == b"IM" else "big"
    found: dict[str, npt.NDArray[Any]] = {}
    position = 128
    for _ in range(_MAX_VARIABLES):
        if position >= length or names == found.keys():
            return found
        kind, size = (int.from_bytes(_read(file, 4), order) for _ in range(2))
        position += 8 + size
        if position > length:
            raise ValueError(f"a variable ends at byte {position:,}, the file at {length:,}")
        source: _Source = file
        if kind == _COMPRESSED:
            source = _Inflated(file, size)
            kind, size = (int.from_bytes(_read(source, 4), order) for _ in range(2))
        if kind == _MATRIX:
            found |= _read_matrix(source, size, order, names)
        file.seek(position)
    raise ValueError(f"it has more than {_MAX_VARIABLES} variables")


def _read_matrix(
    source: _Source, size: int, order: Literal["little", "big"], names: set[str]
) -> dict[str, npt.NDArray[Any]]:
    """Return a matrix by its name; empty if the name is not asked for."""
    flags, left = _read_array(source, size, order, 8)
    dimensions, left = _read_array(source, left, order, 4 * _MAX_DIMENSIONS)
    letters, left = _read_array(source, left, order, _MAX_NAME)
    name = letters.tobytes().decode("latin1")
    if name not in names:
        return {}
    kind = int(flags[0]) if flags.size else 0
    if (kind & 0xFF) not in _NUMERIC_CLASSES or kind >> 8 & _COMPLEX:
        raise ValueError(f"{name!r} is no array of real numbers")
    if dimensions.dtype.kind not in "iu":
        raise ValueError(f"the dimensions of {name!r} are no integers")
    shape = tuple(dimensions.tolist())
    if min(shape, default=-1) < 0:
        raise ValueError(f"{name!r} has shape {shape}")
    values, _ = _read_array(source, left, order, min(8 * math.prod(shape), _MAX_BYTES))
    if math.prod(shape) != values.size:
        raise ValueError(f"{name!r} of shape {shape} has {values.size:,} values")
    return {name: values.reshape(shape, order="F")}


def _read_array(source: _Source, left: int, order: Literal["little", "big"], most: int) -> tuple[npt.NDArray[Any], int]:
    """Read an element of numbers; return it and the number of bytes after it."""
    tag = int.from_bytes(_read(source, 4), order)
    is_small = tag >> 16 != 0  # length, type and content in eight bytes
    kind = tag & 0xFFFF if is_small else tag
    size = tag >> 16 if is_small else int.from_bytes(_read(source, 4), order)
    padding = 4 - size if is_small else -size % 8
    left -= (4 if is_small else 8) + size
    if kind not in _STORED_TYPES or padding < 0 or left < 0:
        raise ValueError(f"an element has type {kind} and {size:,} bytes, which do not fit")
    if size > most:
        raise ValueError(f"an element has {size:,} bytes, but at most {most:,} are read")
    content = _read(source, size)
    if left >= padding:  # a matrix may end before the padding of its last element
        _read(source, padding)
    dtype = np.dtype(_STORED_TYPES[kind]).newbyteorder(order)
    return np.frombuffer(content, dtype), max(left - padding, 0)


def _read(source: _Source, count: int) -> bytes:
    content = source.read(count)
    if len(content) != count:
        raise ValueError(f"it ends {count - len(content):,} bytes too early")
    return content
