"""Download and verify the files of data sets."""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from itertools import chain
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from driftproof.data.registry import DatasetInfo, RemoteFile
from driftproof.errors import ConfigurationError, DownloadError
from driftproof.files import atomic_write

__all__ = ["DownloadProgress", "FileCheck", "fetch", "verify"]

DownloadProgress = Callable[[int, int | None], None]
State = Literal["present", "missing", "wrong length", "wrong checksum", "unchecked"]

_CHUNK = 1 << 20
_MAX_UNKNOWN_LENGTH = 1 << 34
_TIMEOUT_SECONDS = 30
_MAX_BACKOFF_SECONDS = 30.0
_RETRYABLE_CODES = {408, 425, 429}


class _InterruptedDownloadError(Exception):
    """The download was interrupted; another attempt may succeed."""


@dataclass(frozen=True)
class FileCheck:
    """The result of `verify` for one file.

    Attributes:
        file: Name of the file.
        state: "present" if it is complete; "unchecked" if it exists but cannot be checked.
        detail: The reason.
    """

    file: str
    state: State
    detail: str


def fetch(
    file: RemoteFile,
    folder: Path,
    *,
    progress: DownloadProgress | None = None,
    attempts: int = 5,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Download a file, resuming an earlier attempt, and check it.

    Length and checksums are compared with the published ones. If no SHA-256 is published, the first download writes its
    own next to the file, and later downloads have to match it. An existing file is checked, not downloaded.

    Args:
        file: The file to download.
        folder: Folder to save it in.
        progress: Called with the number of bytes received and the total, None if unknown.
        attempts: Number of consecutive failures before giving up; receiving new bytes restarts the count.
        sleep: Called with the number of seconds to wait before the next attempt.

    Returns:
        The path of the file.
    """
    if attempts < 1:
        raise ConfigurationError(f"Expected `attempts` to be at least 1, but got {attempts}.")
    target = Path(folder) / file.name
    if target.exists():
        _check_complete(file, target, target, fix=f"Delete {target} to download it again.")
        return target
    if file.manual or not file.url.startswith(("http://", "https://")):
        raise DownloadError(f"Expected a file that can be downloaded, but got {file.url}. Save it as {target} by hand.")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _PartialFile(target)
    _download_with_retries(file, part, progress, attempts, sleep)
    try:
        _check_complete(file, part.path, target, fix="The download was deleted; try again.")
    except DownloadError:
        part.discard()
        raise
    if file.sha256 is None:
        with atomic_write(_checksum_path(target)) as unfinished:
            unfinished.write_text(f"{_compute_digests(part.path, ['sha256'])['sha256']}  {file.name}\n", "utf-8")
    part.finish(target)
    return target


def verify(dataset: DatasetInfo, root: Path) -> list[FileCheck]:
    """Compare the files on disk with the published lengths and checksums.

    If an archive was deleted after unpacking, its contents are reported as unchecked.

    Args:
        dataset: The data set.
        root: Folder it was downloaded to.
    """
    return [_check_file(file, Path(root), dataset.name) for file in dataset.files]


def _check_file(file: RemoteFile, root: Path, name: str) -> FileCheck:
    for path in (root / file.name, root / name / file.name):  # readers also search a folder with the name of the set
        if path.exists():
            return _compare(file, path, path)
    if file.unpacks_to and all((root / made).exists() for made in file.unpacks_to):
        return FileCheck(file.name, "unchecked", "unpacked; the archive was deleted")
    return FileCheck(file.name, "missing", f"download it from {file.url}")


def _compare(file: RemoteFile, path: Path, target: Path) -> FileCheck:
    length = path.stat().st_size
    if file.size is not None and length != file.size:
        return FileCheck(file.name, "wrong length", f"expected {file.size:,} bytes, but got {length:,}")
    expected = {"sha256": file.sha256 or _read_checksum(target), "md5": file.md5 if file.sha256 is None else None}
    known = {algorithm: value for algorithm, value in expected.items() if value is not None}
    if not known:
        return FileCheck(file.name, "unchecked", "no checksum is known")
    for algorithm, seen in _compute_digests(path, list(known)).items():
        if seen != known[algorithm]:
            origin = f"by {_checksum_path(target)} " if file.sha256 is None and algorithm == "sha256" else ""
            detail = f"expected {origin}{algorithm} {known[algorithm]}, but got {seen}"
            return FileCheck(file.name, "wrong checksum", detail)
    weak = "" if file.sha256 or not file.md5 else "; no sha256 is published, and md5 does not reveal a forged file"
    return FileCheck(file.name, "present", f"{' and '.join(known)} as expected{weak}")


def _check_complete(file: RemoteFile, path: Path, target: Path, *, fix: str) -> None:
    result = _compare(file, path, target)
    if result.state in ("wrong length", "wrong checksum"):
        raise DownloadError(f"Expected {file.name} as published, but it has the {result.state}: {result.detail}. {fix}")


def _compute_digests(path: Path, algorithms: list[str]) -> dict[str, str]:
    hashes = {algorithm: hashlib.new(algorithm, usedforsecurity=False) for algorithm in algorithms}
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            for digest in hashes.values():
                digest.update(chunk)
    return {algorithm: digest.hexdigest() for algorithm, digest in hashes.items()}


def _checksum_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


def _read_checksum(target: Path) -> str | None:
    record = _checksum_path(target)
    words = record.read_text("utf-8").split() if record.exists() else []
    return words[0] if words else None


class _PartialFile:
    """A partial download, and the server's version tag (`ETag` or `Last-Modified`) it belongs to."""

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._mark = target.with_name(f"{target.name}.part.version")

    @property
    def length(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def version(self) -> str | None:
        return self._mark.read_text("utf-8") if self._mark.exists() else None

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._mark.unlink(missing_ok=True)

    def begin(self, version: str | None) -> None:
        self.discard()
        if version is not None:
            with atomic_write(self._mark) as unfinished:
                unfinished.write_text(version, "utf-8")

    def finish(self, target: Path) -> None:
        with self.path.open("rb+") as stream:
            os.fsync(stream.fileno())
        self.path.replace(target)
        self._mark.unlink(missing_ok=True)


def _download_with_retries(
    file: RemoteFile,
    part: _PartialFile,
    progress: DownloadProgress | None,
    attempts: int,
    sleep: Callable[[float], None],
) -> None:
    longest, failures = part.length, 0
    while file.size is None or part.length != file.size:
        try:
            return _download(file, part, progress)
        except _InterruptedDownloadError as reason:
            failures = 1 if part.length > longest else failures + 1
            longest = max(longest, part.length)
            if failures >= attempts:
                raise DownloadError(
                    f"Expected {file.url} to download, but gave up because {reason}. "
                    f"{part.length:,} bytes are kept; the next attempt resumes from there."
                ) from reason
            sleep(min(2.0 ** (failures - 1), _MAX_BACKOFF_SECONDS))
    return None


def _download(file: RemoteFile, part: _PartialFile, progress: DownloadProgress | None) -> None:
    # Without a version tag or a checksum, the end of a changed file could be appended to the start of the old one.
    if part.version is None and file.sha256 is None and file.md5 is None:
        part.discard()
    opened = _open_url(file, part)
    if opened is None:
        return
    with opened as response:
        if file.url.startswith("https:") and not response.url.startswith("https:"):
            raise DownloadError(f"Expected {file.url} to stay encrypted, but it leads to {response.url}.")
        if response.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
            raise _web_page_error(file)
        resumed = response.status == 206
        if resumed and not _is_continuation(response, part):
            part.discard()
            raise _InterruptedDownloadError("the file has changed on the server")
        total = _total_length(response)
        if file.size is not None and total is not None and total != file.size:
            part.discard()
            raise DownloadError(f"Expected {file.url} to have {file.size:,} bytes, but the server has {total:,}.")
        chunks = _chunks(response)
        if not resumed:
            first = next(chunks, None)
            if first is None:
                raise _InterruptedDownloadError("the server sent nothing")
            if re.match(rb"\s*<(!doctype\s+html|html)", first, re.IGNORECASE):
                raise _web_page_error(file)
            part.begin(_get_version(response))
            chunks = chain([first], chunks)
        expected = total or file.size
        _append(part, _cut_at(expected, part, chunks, file), expected, progress)
    if expected is not None and part.length < expected:
        raise _InterruptedDownloadError(f"the connection ended after {part.length:,} of {expected:,} bytes")


def _cut_at(length: int | None, part: _PartialFile, chunks: Iterable[bytes], file: RemoteFile) -> Iterator[bytes]:
    """Yield what is left to download; raise a DownloadError once the server sends more."""
    most = _MAX_UNKNOWN_LENGTH if file.size is None else file.size
    left = min(most, length or most) - part.length
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            part.discard()
            raise DownloadError(
                f"Expected {file.url} to have at most {min(most, length or most):,} bytes, but the server sends more. "
                "The download was deleted."
            )
        yield chunk


def _append(part: _PartialFile, chunks: Iterable[bytes], total: int | None, progress: DownloadProgress | None) -> None:
    done = part.length
    with part.path.open("ab") as sink:
        for chunk in chunks:
            sink.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)


def _open_url(file: RemoteFile, part: _PartialFile) -> HTTPResponse | None:
    """Request the rest of the file; return None if the part is complete already."""
    headers = {"User-Agent": "driftproof"}
    if part.length:
        headers["Range"] = f"bytes={part.length}-"
        if part.version is not None:
            headers["If-Range"] = part.version
    try:
        response: HTTPResponse = urlopen(Request(file.url, headers=headers), timeout=_TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code == 416:
            if error.headers.get("Content-Range") == f"bytes */{part.length}":
                return None
            part.discard()
        if error.code == 416 or error.code in _RETRYABLE_CODES or error.code >= 500:
            raise _InterruptedDownloadError(f"the server answered {error.code} {error.reason}") from error
        raise DownloadError(
            f"Expected {file.url} to exist, but the server answered {error.code} {error.reason}."
        ) from error
    except (OSError, HTTPException) as error:
        raise _InterruptedDownloadError(f"there is no connection ({error})") from error
    return response


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read1(_CHUNK)
        except (OSError, HTTPException) as error:
            raise _InterruptedDownloadError(f"the connection was lost ({error!r})") from error
        if not chunk:
            return
        yield chunk


def _web_page_error(file: RemoteFile) -> DownloadError:
    return DownloadError(
        f"Expected {file.url} to be a file, but the server sent a web page, such as a login or an error. "
        "Open the address in a browser to see it."
    )


def _get_version(response: HTTPResponse) -> str | None:
    tag: str | None = response.headers.get("ETag")
    # If-Range does not accept weak tags.
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _is_continuation(response: HTTPResponse, part: _PartialFile) -> bool:
    start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    same_version = part.version is None or _get_version(response) in (None, part.version)
    return same_version and start is not None and int(start[1]) == part.length


def _total_length(response: HTTPResponse) -> int | None:
    if response.status == 206:
        total = re.search(r"/(\d+)$", response.headers.get("Content-Range", ""))
        return int(total[1]) if total else None
    length = response.headers.get("Content-Length", "")
    if length and not (length.isascii() and length.isdecimal()):
        raise DownloadError(
            f"Expected the server of {response.url} to give a length in bytes, but got {length[:40]!r}. Try later."
        )
    return int(length) if length else None
