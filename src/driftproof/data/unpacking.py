"""Unpack archives that may be damaged or hostile."""

import errno
import gzip
import lzma
import os
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from driftproof.errors import DownloadError

__all__ = ["unpack"]

_ARCHIVE_ERRORS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    RuntimeError,
    ValueError,
)
_ARCHIVE_ERRNOS = {errno.EINVAL, errno.ENAMETOOLONG, errno.EILSEQ, errno.EISDIR, errno.ENOTDIR, errno.EEXIST}
"""What the system says of names and offsets that a damaged archive gives."""
_MIN_UNPACKED, _MAX_RATIO = 1 << 26, 100
"""Bytes that any archive may unpack to, and how many times its length a larger one may."""


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack a tar or zip archive; each top-level entry appears complete or not at all.

    Nothing is unpacked if a name or link leads out of the folder, or if an entry exists already.

    Args:
        archive: The archive.
        folder: Folder to unpack it in.

    Returns:
        The top-level entries that were created.
    """
    archive, folder = Path(archive), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder))
    try:
        _extract(archive, scratch, folder)
        made = []
        for entry in sorted(scratch.iterdir()):
            made.append(entry.rename(folder / entry.name))
        return made
    except _ARCHIVE_ERRORS as error:
        raise DownloadError(f"Expected {archive} to be a complete and safe archive, but {error}.") from error
    except OSError as error:
        if error.errno not in _ARCHIVE_ERRNOS:  # such as a full disk
            raise
        raise DownloadError(f"Expected {archive} to be a complete and safe archive, but {error}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _extract(archive: Path, scratch: Path, folder: Path) -> None:
    room = max(_MIN_UNPACKED, _MAX_RATIO * archive.stat().st_size)
    # Tar first: a tar archive whose last member is a zip file also looks like a zip archive.
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tarred:
            for member in tarred:
                _check_safe_path(member.name, folder)
                room = _take_room(room, member.size)
                tarred.extract(member, scratch, filter="data")
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                _check_safe_path(entry.filename, folder)
                room = _take_room(room, entry.file_size)
                zipped.extract(entry, scratch)
    else:
        raise ValueError("it is neither a tar nor a zip archive")


def _take_room(room: int, size: int) -> int:
    if size > room:
        raise ValueError(f"it would unpack to more than {_MAX_RATIO} times its length")
    return room - size


def _check_safe_path(name: str, folder: Path) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or PureWindowsPath(name).anchor or ".." in PureWindowsPath(name).parts:
        raise ValueError(f"{name!r} in it leads out of the folder")
    if path.parts and os.path.lexists(folder / path.parts[0]):
        raise ValueError(f"{folder / path.parts[0]} exists already; delete it to unpack again")
