"""The adapter behind a server: batches from many requests, one thread that owns the model, and its state on disk."""

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from batched.aio import AsyncBatchProcessor

from driftproof.errors import DriftproofError, StateError
from driftproof.serve.errors import RequestError
from driftproof.serve.limits import Limits
from driftproof.serve.metrics import ServerMetrics
from driftproof.serve.predictor import Answer, Image, Predictor
from driftproof.serve.snapshots import Follower, load_snapshot, load_state, save_snapshot

__all__ = ["Service"]

_LOG = logging.getLogger("driftproof.serve")
_FOLLOW_SECONDS = 0.5
_STUCK = 4
"""A batch that takes so many times the time of a request will not end."""
_Result = TypeVar("_Result")


class Service:
    """Predicts images of many requests in common batches.

    `batched` forms the batches. Requests that were canceled before their batch began are left out of it. Everything
    that touches the adapter runs in one thread, one after the other.

    Args:
        predictor: Predicts batches.
        limits: How many images may wait.
        metrics: Counts what happens.
        batch_size: Images in a batch, at most.
        max_wait: Seconds that an image waits for others.
        state: File that keeps the state; None keeps none.
        save_every: Save the state after so many batches.
        follow: State file of another process to answer with; None learns by itself.

    Attributes:
        num_pending: Images that wait for an answer.
    """

    def __init__(
        self,
        predictor: Predictor,
        limits: Limits,
        metrics: ServerMetrics,
        *,
        batch_size: int = 64,
        max_wait: float = 0.01,
        state: Path | None = None,
        save_every: int = 50,
        follow: Path | None = None,
    ) -> None:
        self.predictor, self.limits, self.metrics = predictor, limits, metrics
        self.num_pending = 0
        self.follower = None if follow is None else Follower(predictor.adapter, follow)
        self._state, self._save_every, self._saved_batches = state, save_every, 0
        self._options = {"batch_size": batch_size, "timeout_ms": 1000 * max_wait}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="driftproof-model")
        self._is_running = False
        self._batch_began: float | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        return self._is_running and (self.follower is None or self.follower.is_ready)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """A context in which requests are answered; the state is saved at its end."""
        self._batches = AsyncBatchProcessor(self._run_batch, **self._options)
        if self.follower is not None:
            await self._reload()
            self._following = asyncio.create_task(self._follow())
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
            if self._following is not None:
                self._following.cancel()
                with suppress(asyncio.CancelledError):
                    await self._following
            if self._state is not None and self.follower is None:
                await self.run(self._save)
            self._thread.shutdown()

    async def predict(self, images: list[Image]) -> list[Answer | DriftproofError]:
        """Return the answer to each image, or why it has none."""
        self.check_ready()
        try:
            answers: list[Answer | DriftproofError] = await self._batches(images)
        except Exception as error:
            _LOG.exception("a batch failed")
            raise RequestError("internal", "Expected a prediction, but the batch failed. See the log.") from error
        return answers

    def check_ready(self) -> None:
        """Raise `RequestError` if requests cannot be answered."""
        if not self.is_ready:
            reason = "it has no state to follow yet" if self._is_running else "it is starting or stopping"
            raise RequestError("not_ready", f"Expected a server that is ready, but {reason}. Try again.")

    def check_alive(self) -> None:
        """Raise `RequestError` if the model has worked on one batch for very long."""
        began = self._batch_began
        if began is not None and time.monotonic() - began > _STUCK * self.limits.seconds:
            raise RequestError("stuck", "Expected the batch to end, but the model is stuck. Restart the server.")

    def reserve(self, count: int) -> None:
        """Count images as pending; raise `RequestError` if there are too many."""
        if self.num_pending + count > self.limits.max_pending:
            raise RequestError(
                "overloaded",
                f"Expected at most {self.limits.max_pending} images to wait, but {self.num_pending} do. Try again.",
            )
        self.num_pending += count

    def release(self, count: int) -> None:
        """Count images as answered."""
        self.num_pending -= count

    # --- the state ----------------------------------------------------------------------------------------------------

    async def export_state(self) -> bytes:
        """Return the state as a file."""

        def export() -> bytes:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "state.safetensors")
                self.predictor.adapter.save(path, alarm=self.predictor.alarm)
                return path.read_bytes()

        return await self.run(export)

    async def import_state(self, content: bytes) -> None:
        """Continue from an exported state; one that does not fit changes nothing."""
        self._check_learns()

        def load() -> None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "state.safetensors")
                path.write_bytes(content)
                try:
                    load_state(self.predictor.adapter, path, self.predictor.alarm)
                except StateError as error:
                    message = str(error).replace(str(path), "the upload")
                    raise RequestError("bad_state", message) from error

        try:
            await self.run(load)
        except RequestError:
            self.metrics.loads.labels("failed").inc()
            raise
        self.metrics.loads.labels("ok").inc()
        await self._keep_state()

    async def reset(self) -> None:
        """Return to the trained weights."""
        self._check_learns()
        await self.run(self.predictor.adapter.reset)
        await self._keep_state()

    def count_state_bytes(self) -> int:
        """Return the size of the state; call it in the model's thread."""
        return sum(tensor.nbytes for tensor in self.predictor.adapter.state_dict().values())

    async def _keep_state(self) -> None:
        if self._state is not None:
            await self.run(self._save)

    def _check_learns(self) -> None:
        if self.follower is not None:
            raise RequestError(
                "read_only", "Expected a server that learns, but this one follows another. Ask that one instead."
            )

    def load(self) -> bool:
        """Continue from the state file if there is one; returns whether there was. Call it before `running`."""
        if self._state is None or not self._state.exists():
            return False
        load_snapshot(self.predictor.adapter, self._state, self.predictor.alarm)
        self.metrics.loads.labels("ok").inc()
        return True

    def _save(self) -> None:
        assert self._state is not None
        try:
            save_snapshot(self.predictor.adapter, self._state, self.predictor.alarm)
        except OSError as error:  # a full disk must not end the service
            self.metrics.saves.labels("failed").inc()
            _LOG.error("the state could not be saved: %s", error.strerror or error)
            return
        self._saved_batches = self.predictor.num_batches
        self.metrics.saves.labels("ok").inc()
        self.metrics.saved_at.set(time.time())

    # --- the model's thread -------------------------------------------------------------------------------------------

    async def run(self, function: Callable[[], _Result]) -> _Result:
        """Run a function in the thread that owns the adapter."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _run_batch(self, images: list[Image]) -> list[Answer | DriftproofError]:
        answers = await self.run(lambda: self._step(images))
        is_due = self.predictor.num_batches - self._saved_batches >= self._save_every
        if is_due and self._state is not None and self.follower is None:
            self._saved_batches = self.predictor.num_batches
            # Not awaited: the answers go out meanwhile, and the next batch waits for the thread.
            asyncio.get_running_loop().run_in_executor(self._thread, self._save)
        return answers

    def _step(self, images: list[Image]) -> list[Answer | DriftproofError]:
        self._batch_began = time.monotonic()
        try:
            return self.predictor.predict(images)
        finally:
            self._batch_began = None

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOW_SECONDS)
            await self._reload()

    async def _reload(self) -> None:
        follower = self.follower
        assert follower is not None
        failed = follower.num_failed
        if not await asyncio.to_thread(follower.is_changed):
            return
        if await self.run(follower.reload):
            self.metrics.loads.labels("ok").inc()
            self.metrics.saved_at.set(time.time())
        elif follower.num_failed > failed:
            self.metrics.loads.labels("failed").inc()
            _LOG.error("the followed state could not be loaded: %s", follower.last_error)
