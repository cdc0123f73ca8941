"""Writes a `.npy` file row by row, through an ordinary file.

Writing through a memory map would end the process, not raise an error, when the disk is full.
"""

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["RowWriter", "write_rows"]

RowWriter = Callable[[int, npt.NDArray[np.uint8]], None]


@contextmanager
def write_rows(path: Path, shape: tuple[int, ...], *, resume: bool = False) -> Iterator[RowWriter]:
    """Yield a function that writes rows from an index on; they reach the file before it returns.

    Errors name `path`.

    Args:
        path: The file, of type uint8.
        shape: Shape of the array.
        resume: Keep the rows of the file, which has this shape.
    """
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    start, row = len(header.getvalue()), math.prod(shape[1:])
    try:
        with path.open("r+b" if resume else "w+b") as file:
            if not resume:
                file.write(header.getvalue())
                file.truncate(start + shape[0] * row)

            def write(index: int, rows: npt.NDArray[np.uint8]) -> None:
                file.seek(start + index * row)
                file.write(np.ascontiguousarray(rows).data)
                file.flush()

            yield write
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
