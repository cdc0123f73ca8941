"""Batches read while the model works on earlier ones."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError
from driftproof.streams.batch import Batch, Plan, Stream

__all__ = ["Prefetched"]

_THREAD_NAME = "driftproof-prefetch"

Receive = Callable[[], Batch]
"""Hands a batch over to the thread that calls it."""


class Prefetched:
    """The same batches, read in a background thread and moved to a device before they are asked for.

    Pixels travel as bytes and become floats on the device, which may round the last bit differently; to a GPU they go
    through pinned memory on a stream of their own. An error while reading is raised where the batch would have come.
    The thread ends with the iteration, however that ends.

    Args:
        stream: What to read.
        device: Where the batches are wanted; None leaves them in main memory.
        ahead: Batches that wait or are being read, besides the one in use.
    """

    def __init__(self, stream: Stream, *, device: torch.device | str | None = None, ahead: int = 2) -> None:
        if ahead < 1:
            raise ConfigurationError(f"Expected `ahead` to be at least 1, but got {ahead}.")
        self.stream = stream
        self.device = None if device is None else torch.device(device)
        self.ahead = ahead

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[Batch]:
        plans, read = self.stream.plans(), _reader(self.device)
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=_THREAD_NAME)
        try:
            readings = (pool.submit(lambda: read(next(plans))) for _ in range(len(self)))
            waiting = deque(islice(readings, self.ahead))
            while waiting:
                # A name for the batch would keep it alive here while the caller works on the next one.
                yield _oldest(waiting, readings)()
        finally:
            # A forgotten iteration may be collected by the very thread that would have to be waited for.
            collected = threading.current_thread().name.startswith(_THREAD_NAME)
            pool.shutdown(wait=not collected, cancel_futures=True)


def _oldest(waiting: deque[Future[Receive]], readings: Iterator[Future[Receive]]) -> Receive:
    receive = waiting.popleft().result()
    waiting.extend(islice(readings, 1))
    return receive


def _reader(device: torch.device | None) -> Callable[[Plan], Receive]:
    if device is None:
        return lambda plan: _handed_over(plan.read())
    if device.type == "cuda":
        return _OnSideStream(device)
    return lambda plan: _handed_over(plan.read(lambda tensor: tensor.to(device)))


def _handed_over(batch: Batch) -> Receive:
    return lambda: batch


class _OnSideStream:
    def __init__(self, device: torch.device) -> None:
        # Made by the caller's thread, whose current device an index left out refers to.
        self.side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, plan: Plan) -> Receive:
        with torch.cuda.stream(self.side):
            batch = plan.read(self._move)
            arrived = self.side.record_event()
        return lambda: self._received(batch, arrived)

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to(self.side.device, non_blocking=True)

    def _received(self, batch: Batch, arrived: torch.cuda.Event) -> Batch:
        current = torch.cuda.current_stream(self.side.device)
        current.wait_event(arrived)
        for tensor in (batch.images, batch.labels, batch.known):
            tensor.record_stream(current)  # its memory belongs to the side stream and is in use on this one
        return batch
