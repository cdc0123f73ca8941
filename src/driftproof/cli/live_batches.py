"""Form batches of images as they arrive, by count or by time."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from driftproof.cli.arrivals import Arrivals
from driftproof.cli.frames import Frame
from driftproof.cli.images import LoadedBatch, load_frames, make_decoders

if TYPE_CHECKING:
    from driftproof.cli.journal import Journal
    from driftproof.cli.snapshots import Checkpoint
    from driftproof.cli.stop_signals import StopRequest
    from driftproof.data.images import Size

__all__ = ["LiveBatches"]

_WAIT_SECONDS = 0.1


class LiveBatches:
    """Batches of images in the order in which they arrive.

    A batch is complete with `batch_size` images, `batch_seconds` after its first image arrived, where a source ends it,
    or with the last image. The next batch is formed and decoded in a thread while the current one is predicted.

    Args:
        arrivals: Where images come from.
        batch_size: Largest number of images in a batch.
        batch_seconds: How long a batch waits for more; infinite by default.
        idle: End after so many seconds without an image; infinite by default.
        size: As in `driftproof.data.FileSet`.
        stop: Ends the batches, too.
        journal: Keeps the composition of the batches; None keeps none.
        clock: Returns seconds since any moment.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        *,
        batch_size: int,
        batch_seconds: float = math.inf,
        idle: float = math.inf,
        size: "Size" = None,
        stop: "StopRequest | None" = None,
        journal: "Journal | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arrivals, self._journal, self._stop, self._clock = arrivals, journal, stop, clock
        self._batch_size, self._batch_seconds, self._idle, self._size = batch_size, batch_seconds, idle, size
        self._buffer: deque[tuple[float, Frame | None]] = deque()
        self._replayed: deque[list[Frame]] = deque()
        self._position = 0
        self._closing = threading.Event()
        self._is_over = False

    def resume(self, checkpoint: "Checkpoint", names: Iterator[str]) -> None:
        """Go on after the images of a checkpoint: first with the batches that were formed after it.

        Args:
            checkpoint: Where the run goes on.
            names: The names of the images before it.
        """
        self._position = checkpoint.images
        if self._journal is None:
            self._arrivals.skip(names, checkpoint.images)
            return
        self._journal.prune(0)  # drops a line that was not written whole
        batches, waiting = self._journal.read(checkpoint.images)
        self._replayed.extend([Frame.from_path(Path(file)) for file in files] for _, files in batches)
        self._buffer.extend((self._clock(), Frame.from_path(Path(file)) if file else None) for file in waiting)
        formed = [frame.name for frames in self._replayed for frame in frames]
        held = [frame.name for _, frame in self._buffer if frame is not None]
        done = [*names, *formed, *held]
        self._arrivals.skip(done, len(done))

    def __iter__(self) -> Iterator[LoadedBatch]:
        with ThreadPoolExecutor(max_workers=1) as former, make_decoders() as decoders:
            pending = former.submit(self._load_next, decoders)
            try:
                while (loaded := pending.result()) is not None:
                    batch, files = loaded
                    pending = former.submit(self._load_next, decoders)
                    if self._journal is not None and files is not None:
                        self._journal.append(next(iter(batch.names)), _list_files(files))
                    yield batch
            finally:
                self._closing.set()
                self._keep_rest(pending.result())

    def _load_next(self, decoders: ThreadPoolExecutor) -> tuple[LoadedBatch, list[Frame] | None] | None:
        """Load the next batch; its images come with it if they are not in the journal yet."""
        is_replayed = bool(self._replayed)
        frames = self._replayed.popleft() if self._replayed else self._form()
        if not frames:
            return None
        numbered = dict(enumerate(frames, start=self._position))
        self._position += len(frames)
        return load_frames(numbered, self._size, decoders), None if is_replayed else frames

    def _form(self) -> list[Frame]:
        """Wait for the images of a batch; none at the end."""
        last = self._clock()
        timeout = 0.0  # first take in what arrived meanwhile
        while not self._is_asked_to_end():
            if not self._is_over and len(self._buffer) < self._batch_size:
                new = self._arrivals.poll(timeout)
                now = self._clock()
                self._buffer.extend((now, frame) for frame in new)
                last = now if any(frame is not None for frame in new) else last
                self._is_over = self._arrivals.finished or now - last >= self._idle
            if (frames := self._take()) or (self._is_over and not self._buffer):
                return frames
            timeout = min(_WAIT_SECONDS, self._seconds_left())
        return []

    def _take(self) -> list[Frame]:
        """Take the images of a complete batch; none if it is not complete."""
        while self._buffer and self._buffer[0][1] is None:
            self._buffer.popleft()
        frames: list[Frame] = []
        for _, frame in self._buffer:
            if frame is None or len(frames) == self._batch_size:
                break
            frames.append(frame)
        is_complete = len(frames) == self._batch_size or len(frames) < len(self._buffer) or self._is_over
        if not frames or not (is_complete or self._seconds_left() <= 0):
            return []
        for _ in frames:
            self._buffer.popleft()
        return frames

    def _seconds_left(self) -> float:
        """How long the batch may still wait."""
        if not self._buffer:
            return math.inf
        return max(0.0, self._batch_seconds - (self._clock() - self._buffer[0][0]))

    def _is_asked_to_end(self) -> bool:
        return self._closing.is_set() or (self._stop is not None and self._stop.number is not None)

    def _keep_rest(self, pending: tuple[LoadedBatch, list[Frame] | None] | None) -> None:
        """Keep images that may not arrive again: those of a batch that was not predicted, and those in no batch."""
        rest = [*(frame for _, frame in self._buffer), *self._arrivals.close()]
        if self._journal is None:
            return
        with suppress(OSError):  # the disk is full: what ended the run is raised already
            if pending is not None and pending[1] is not None:
                self._journal.append(next(iter(pending[0].names)), _list_files(pending[1]))
            if any(frame is not None for frame in rest):
                self._journal.append(None, _list_files(rest))


def _list_files(frames: Sequence[Frame | None]) -> list[str]:
    return ["" if frame is None else str(frame.path) for frame in frames]
