"""Atomic writes and checksums of files."""

import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from driftproof.errors import InputError

__all__ = ["atomic_write", "check_regular_file", "check_writable", "sha256"]


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` on success.

    On failure an existing file at `path` is unchanged and the temporary file is removed. Errors name `path`.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with atomic_write(Path(folder, "result.txt")) as temporary:
        ...         _ = temporary.write_text("done")
        ...     Path(folder, "result.txt").read_text()
        'done'
    """
    # The name is cut because it may already have the maximum length.
    temporary = path.with_name(f".{path.name[:40]}.{uuid.uuid4().hex}.part")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.filename == str(temporary):  # name the file the caller asked for
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise `OSError` if `path` cannot be written; creates its folder.

    Call it before long work whose result goes to `path`.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=path.parent):
        pass


def check_regular_file(path: Path) -> None:
    """Raise `InputError` if `path` is a pipe, a socket, a device or a folder, and `OSError` if it does not exist.

    Opening a named pipe waits for a writer, perhaps forever, and a device may never end.
    """
    mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    raise InputError(f"Expected {path} to be a regular file, but it is {kind}. Save its content as a file first.")


def sha256(path: Path) -> str:
    """Return the SHA-256 checksum of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
