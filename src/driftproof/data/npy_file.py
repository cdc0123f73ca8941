"""A reader of `.npy` files, memory-mapped, which checks the header against the file before it maps anything."""

import math
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from driftproof.errors import InputError
from driftproof.files import check_regular_file

__all__ = ["load_array"]

_HEADERS: dict[tuple[int, int], Callable[..., tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_MAX_HEADER = 10_000


def load_array(path: Path) -> npt.NDArray[Any]:
    """Open a `.npy` file of numbers, memory-mapped.

    Raises:
        InputError: If it holds anything else, or more or less than its header says.
    """
    try:
        check_regular_file(path)
        with path.open("rb") as file:
            return _map_array(file, path.stat().st_size)
    except InputError:
        raise
    # A damaged header is parsed as Python, which may raise almost anything.
    except Exception as error:
        raise InputError(
            f"Expected {path} to be a complete .npy file of numbers, but it cannot be read: {error}."
        ) from error


def _map_array(file: BinaryIO, length: int) -> npt.NDArray[Any]:
    # NumPy allocates as much as the header claims to have, whatever the file has.
    head = BytesIO(file.read(_MAX_HEADER))
    version = np.lib.format.read_magic(head)
    read_header = _HEADERS.get(version)
    if read_header is None:
        raise ValueError(f"its format has the version {version}")
    shape, columns_first, dtype = read_header(head, max_header_size=_MAX_HEADER)
    if dtype.kind not in "biuf" or min(shape, default=0) < 0:
        raise ValueError(f"it holds {dtype} of shape {shape}")
    size, start = math.prod(shape) * dtype.itemsize, head.tell()
    if size != length - start:
        raise ValueError(f"{dtype} of shape {shape} takes {size:,} bytes, but {length - start:,} follow its header")
    if not size:  # nothing can be mapped
        return np.empty(shape, dtype)
    return np.memmap(file.name, dtype, "r", start, shape, "F" if columns_first else "C")
