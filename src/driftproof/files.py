"""Atomic writes, checksums and safe opening of files."""

import errno
import functools
import hashlib
import json
import os
import platform
import re
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from driftproof.errors import InputError

__all__ = [
    "atomic_write",
    "check_regular_file",
    "check_writable",
    "open_regular",
    "read_json",
    "read_text",
    "remove_unfinished",
    "sha256",
]

_ABANDONED_AFTER = 24 * 3600.0
"""Seconds without a write after which an unfinished file of an unknown process is abandoned."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


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
    unique = f"{_process_space()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    temporary = path.with_name(f".{_shorten(path.name)}.{unique}.part")
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


def remove_unfinished(path: Path) -> None:
    """Remove what killed processes left of `atomic_write` to `path`.

    A file goes if its process has ended, or if nothing was written to it for a day. Whatever cannot be removed stays.
    """
    pattern = re.compile(
        rf"\.{re.escape(_shorten(path.name))}\.((?P<space>[0-9a-f]{{8}})-(?P<process>\d{{1,10}})-[0-9a-f]{{12}}|[0-9a-f]{{32}})\.part"
    )
    try:
        found = [(entry, match) for entry in os.scandir(path.parent) if (match := pattern.fullmatch(entry.name))]
    except OSError:
        return
    for entry, match in found:
        try:
            if not entry.is_file(follow_symlinks=False):
                continue
            is_old = time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_AFTER
            if is_old or (match["space"] == _process_space() and not _is_alive(int(match["process"]))):
                Path(entry.path).unlink()
        except OSError:
            continue


def _shorten(name: str) -> str:
    return name[:40]  # it may already have the maximum length


@functools.cache
def _process_space() -> str:
    """Eight digits that processes share if they see each other's numbers: one machine, one container."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{platform.node()} {uuid.getnode()} {namespace}".encode()).hexdigest()[:8]


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # unknown: signal 0 would end it
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a folder, named pipe, socket or device raises `InputError`.

    Opening a named pipe would wait for a writer. Missing files and missing permission raise their own `OSError`.
    """
    _check_regular(path, path.stat().st_mode)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)  # it may have been replaced meanwhile
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_text(path: Path, *, limit: int = 1 << 26) -> str:
    """Read a regular file of UTF-8 text, at most `limit` bytes; anything else raises `InputError` with its name."""
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(
            f"Expected {path} to have at most {limit:,} bytes of text, but it has more. Name another file."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"Expected {path} to be UTF-8 text, but it is not: {error}.") from error


def read_json(path: Path) -> Any:  # noqa: ANN401  # JSON holds anything
    """Read a regular file of JSON; a damaged or hostile one raises `InputError` with its name."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected {path} to be JSON, but it cannot be read: {error}.") from error


def check_regular_file(path: Path) -> None:
    """Raise `InputError` if `path` is a folder, named pipe, socket or device, and `OSError` if it does not exist.

    For files that a library opens by name; a device may never end.
    """
    _check_regular(path, path.stat().st_mode)


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise InputError(f"Expected {path} to be a regular file, but it is {kind}. Name a file.")


def check_writable(path: Path) -> None:
    """Raise `OSError` if `path` cannot be written; creates its folder.

    Call it before long work whose result goes to `path`.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=path.parent):
        pass


def sha256(path: Path) -> str:
    """Return the SHA-256 checksum of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
