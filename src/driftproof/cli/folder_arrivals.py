"""Images of folders that keep growing."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from driftproof.cli.arrivals import Arrivals, make_key
from driftproof.cli.frames import Frame
from driftproof.errors import InputError

__all__ = ["FolderArrivals"]

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class _Growing:
    """A file that may still be written.

    Attributes:
        version: Its size and time of change.
        since: Since when it has been like that.
    """

    version: tuple[int, int]
    since: float


class FolderArrivals(Arrivals):
    """Images that appear in folders and their sub-folders, each once.

    A file is taken once it is not empty and has not changed for `settle` seconds. Time is counted by a clock that never
    jumps; times of change are only compared with each other. Names are remembered as long as the file is there.

    Args:
        folders: The folders.
        settle: Seconds without a change after which a file counts as fully written.
        clock: Returns seconds since any moment.
    """

    def __init__(
        self, folders: Sequence[Path], settle: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise InputError(f"Expected {folder} to be a folder to follow, but it is not. Create it first.")
        self._folders = folders
        self._settle = settle
        self._clock = clock
        self._taken: set[str] = set()
        self._growing: dict[str, _Growing] = {}

    def poll(self, timeout: float) -> list[Frame | None]:
        """Return the files that are fully written, by time of change."""
        deadline = self._clock() + timeout
        while True:
            started = time.perf_counter()
            if found := self._scan():
                return list(map(Frame.from_path, found))
            if (rest := deadline - self._clock()) <= 0:
                return []
            # A scan of many files takes long; it should not keep a core busy.
            time.sleep(max(min(rest, _POLL_SECONDS), 4 * (time.perf_counter() - started)))

    def skip(self, names: Iterable[str], count: int) -> None:
        """Leave out files with these names."""
        self._taken = set(map(make_key, names))

    def describe_rest(self) -> str | None:
        """Say how many files were still being written."""
        count = len(self._growing)
        return f"{count} files were still being written and have no row" if count else None

    def _scan(self) -> list[Path]:
        from driftproof.data.folder import image_files

        now, growing, present = self._clock(), dict[str, _Growing](), set[str]()
        ready: list[tuple[int, Path]] = []
        for path in (path for folder in self._folders for path in image_files(folder)):
            key = make_key(Frame.from_path(path).name)
            present.add(key)
            if key in self._taken:
                continue
            version = _read_version(path)
            before = self._growing.get(key)
            current = before if before is not None and before.version == version else _Growing(version, now)
            if version[0] and now - current.since >= self._settle:
                ready.append((version[1], path))
            else:
                growing[key] = current
        self._growing = growing
        self._taken = (self._taken & present) | {make_key(Frame.from_path(path).name) for _, path in ready}
        return [path for _, path in sorted(ready)]


def _read_version(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:  # a broken link stays one; reading it will say so
        return 1, 0
    return (status.st_size if os.path.isfile(path) else 1), status.st_mtime_ns  # noqa: PTH113  # no errors
