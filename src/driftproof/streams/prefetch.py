"""Read batches in a background thread."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError
from driftproof.streams.batch import BatchPlan, Stream, StreamBatch

__all__ = ["Prefetcher"]

_THREAD_NAME = "driftproof-prefetch"

Handover = Callable[[], StreamBatch]
"""Hands a batch over to the calling thread."""


class Prefetcher:
    """Iterates a stream, reading batches ahead in a background thread and moving them to a device.

    Pixels are moved as uint8 and converted to float on the device, which may round the last bit differently. Copies to
    a GPU use pinned memory and a separate CUDA stream. A read error is raised in place of the batch. The thread stops
    when the iteration ends, for any reason.

    Args:
        stream: Stream to read.
        device: Target device; None leaves the batches on the CPU.
        ahead: Number of batches read or being read ahead of the one in use.
    """

    def __init__(self, stream: Stream, *, device: torch.device | str | None = None, ahead: int = 2) -> None:
        if ahead < 1:
            raise ConfigurationError(f"Expected `ahead` to be at least 1, but got {ahead}.")
        self.stream = stream
        self.device = None if device is None else torch.device(device)
        self.ahead = ahead

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[StreamBatch]:
        plans, read = self.stream.plans(), _make_reader(self.device)
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=_THREAD_NAME)
        try:
            futures = (pool.submit(lambda: read(next(plans))) for _ in range(len(self)))
            pending = deque(islice(futures, self.ahead))
            while pending:
                # A local variable would keep the batch alive while the caller works on the next one.
                yield _pop_oldest(pending, futures)()
        finally:
            # The garbage collector may close this generator in the worker thread, which cannot wait for itself.
            in_worker = threading.current_thread().name.startswith(_THREAD_NAME)
            pool.shutdown(wait=not in_worker, cancel_futures=True)


def _pop_oldest(pending: deque[Future[Handover]], futures: Iterator[Future[Handover]]) -> Handover:
    handover = pending.popleft().result()
    pending.extend(islice(futures, 1))
    return handover


def _make_reader(device: torch.device | None) -> Callable[[BatchPlan], Handover]:
    if device is None:
        return lambda plan: _hand_over(plan.read())
    if device.type == "cuda":
        return _SideStreamReader(device)
    return lambda plan: _hand_over(plan.read(lambda tensor: tensor.to(device)))


def _hand_over(batch: StreamBatch) -> Handover:
    return lambda: batch


class _SideStreamReader:
    def __init__(self, device: torch.device) -> None:
        # Created in the caller's thread, because a device without an index means that thread's current device.
        # PyTorch gives out 32 streams of each priority by turns. One of the usual priority would sooner or later be the
        # stream that a step is being captured on, which would capture the copy instead of making it.
        self.side = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def __call__(self, plan: BatchPlan) -> Handover:
        with torch.cuda.stream(self.side):
            batch = plan.read(self._to_device)
            copied = self.side.record_event()
        return lambda: self._synchronize(batch, copied)

    def _to_device(self, tensor: Tensor) -> Tensor:
        # `tensor.pin_memory()` refuses expanded tensors, such as gray images that are shown as three channels.
        pinned = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
        return pinned.to(self.side.device, non_blocking=True)

    def _synchronize(self, batch: StreamBatch, copied: torch.cuda.Event) -> StreamBatch:
        current = torch.cuda.current_stream(self.side.device)
        current.wait_event(copied)
        for tensor in (batch.images, batch.labels, batch.known):
            tensor.record_stream(current)  # allocated on the side stream, used on this one
        return batch
