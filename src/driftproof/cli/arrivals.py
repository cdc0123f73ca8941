"""Images that arrive while a run goes on: named by lines of text, or from videos."""

import os
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from driftproof.cli.frames import Frame, format_name
from driftproof.cli.video import is_video, read_video

__all__ = ["Arrivals", "LineArrivals", "SequentialArrivals", "make_key"]

_MAX_LINE = 64 * 1024
_MAX_LINES = 1000


def make_key(name: str) -> str:
    """Return what tells images apart by name: as a table has it, where a row is a line."""
    return name.replace("\r", "\\r").replace("\n", "\\n")


class Arrivals:
    """Images in the order in which they arrive.

    Attributes:
        finished: Whether no more will come.
        repeats: Whether a new one begins with the same images in the same order, so that a resumed run can count.
    """

    finished = False
    repeats = False

    def poll(self, timeout: float) -> list[Frame | None]:
        """Return what has arrived; waits up to so many seconds for the first. None ends a batch."""
        raise NotImplementedError

    def skip(self, names: Iterable[str], count: int) -> None:
        """Leave out images that an earlier part of the run has dealt with, before the first `poll`.

        Args:
            names: Their names.
            count: How many there are.
        """
        raise NotImplementedError

    def close(self) -> list[Frame | None]:
        """Stop; returns images that have arrived, cannot arrive again, and were not taken. None ends a batch."""
        return []

    def describe_rest(self) -> str | None:
        """Say what was left out at the end; None if nothing was."""
        return None


class SequentialArrivals(Arrivals):
    """Files and videos, one after the other; the frames of a video are in its order.

    Args:
        paths: Images and videos.
    """

    repeats = True

    def __init__(self, paths: Sequence[Path]) -> None:
        self._frames = self._iterate(paths)

    def poll(self, timeout: float) -> list[Frame | None]:
        """Return the next image."""
        frame = next(self._frames, None)
        self.finished = frame is None
        return [] if frame is None else [frame]

    def skip(self, names: Iterable[str], count: int) -> None:
        """Leave out the first `count`."""
        self._frames = islice(self._frames, count, None)

    def _iterate(self, paths: Sequence[Path]) -> Iterator[Frame]:
        for path in paths:
            yield from read_video(path) if is_video(path) else [Frame.from_path(path)]


class LineArrivals(Arrivals):
    """Image files named by lines of text; an empty line ends a batch.

    A thread reads, so that waiting for a line does not keep a run from stopping. It waits when 1,000 lines wait.

    Args:
        descriptor: File descriptor to read from.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(_MAX_LINES)
        self._skipped: Counter[str] = Counter()
        self._is_skipping = self._ends_before_next = False
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def poll(self, timeout: float) -> list[Frame | None]:
        """Return the images of the lines that were read."""
        if self._reader.ident is None:
            self._reader.start()
        lines: list[bytes | None] = []
        try:
            lines.append(self._lines.get(timeout=timeout))
            while len(lines) < _MAX_LINES:
                lines.append(self._lines.get_nowait())
        except queue.Empty:
            pass
        self.finished = None in lines
        return [frame for line in lines if line is not None for frame in self._parse(line)]

    def skip(self, names: Iterable[str], count: int) -> None:
        """Leave out lines with these names, each as often as it is among them."""
        self._skipped = Counter(map(make_key, names))

    def close(self) -> list[Frame | None]:
        """Stop reading; returns the images of lines that were read but not taken."""
        self._closing.set()
        left: list[Frame | None] = []
        while not self._lines.empty():
            line = self._lines.get_nowait()
            left += [] if line is None else self._parse(line)
        return left

    def _parse(self, line: bytes) -> list[Frame | None]:
        text = os.fsdecode(line.rstrip(b"\r\n"))
        if not text.strip():
            if self._is_skipping:
                self._ends_before_next = True
                return []
            return [None]
        if self._skipped and (left := self._skipped.get(key := make_key(format_name(text)), 0)):
            self._skipped[key] = left - 1
            self._is_skipping, self._ends_before_next = True, False
            return []
        # Of the ends of batches among skipped lines only one right before this line matters.
        frames = [None] if self._ends_before_next else []
        self._is_skipping = self._ends_before_next = False
        return [*frames, Frame.from_path(Path(text))]

    def _read(self) -> None:
        rest = b""
        with suppress(OSError):  # closed: nothing more will come
            while chunk := os.read(self._descriptor, 65536):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _MAX_LINE:
                    lines, rest = [*lines, rest[:_MAX_LINE]], b""
                for line in lines:
                    self._put(line)
        if rest:
            self._put(rest)
        self._put(None)

    def _put(self, line: bytes | None) -> None:
        while not self._closing.is_set():
            with suppress(queue.Full):
                self._lines.put(line, timeout=0.2)
                return
