"""Files that are there whole or not at all, and what they are known by."""

import errno
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

__all__ = ["atomic_write", "check_writable", "sha256"]


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A path to write to; what was written there becomes `path` in one act at the end, or nothing does.

    A file that was at `path` survives any failure, and nothing unfinished is left behind. Errors name `path`.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with atomic_write(Path(folder, "result.txt")) as unfinished:
        ...         _ = unfinished.write_text("done")
        ...     Path(folder, "result.txt").read_text()
        'done'
    """
    # Not the whole name, which may be as long as a name can be.
    unfinished = path.with_name(f".{path.name[:40]}.{uuid.uuid4().hex}.part")
    try:
        yield unfinished
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        if error.filename == str(unfinished):  # the caller knows the file by its own name
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Fail now where a file could not be written at the end of long work; makes its folder if need be."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=path.parent):
        pass


def sha256(path: Path) -> str:
    """The checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
