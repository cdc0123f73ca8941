"""Many cells at once, on a Ray cluster."""

import logging
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from driftproof.bench.executors.failures import Failures
from driftproof.bench.jobs import Job, run_job
from driftproof.bench.runner import ProgressEvent, RunSettings, ProgressCallback, ResourceProvider
from driftproof.errors import ConfigurationError, DriftproofError, ExecutionError
from driftproof.optional import require

__all__ = ["run_on_ray"]

_CPUS = 1
_LOST_WORKERS = 10
_PATIENCE = 60.0
_SECONDS_BETWEEN_NOTES = 0.2


def run_on_ray(
    jobs: Sequence[Job],
    folder: Path,
    workbench: ResourceProvider,
    settings: RunSettings,
    told: ProgressCallback,
    failures: Failures | None = None,
) -> None:
    """Run every job as a task of a Ray cluster; when a worker is lost, another goes on with its cell.

    The cluster is the one that this process is connected to, else the one that `RAY_ADDRESS` names or that runs on this
    machine; where there is none, one is started and stopped again. Every task takes one CPU, and one GPU if the device
    is one. All machines have to see the results folder, and what the workbench reads, at the same paths.

    Args:
        jobs: What to do.
        folder: The results folder.
        workbench: Where the ingredients come from; it is sent to the workers.
        settings: How to run the jobs.
        told: Hears how it goes, in this process. A cell that changes workers tells of some rows again.
        failures: What went wrong with other jobs before, to be told together.
    """
    ray = require("ray", "Running cells on a cluster", "'driftproof[ray]'")
    failures = failures or Failures(told)
    with _connected(ray), _mailbox(told) as mailbox:
        task, on_worker = _task(ray, settings)
        ingredients = ray.put(workbench)
        running = {
            task.remote(job, Path(folder).absolute(), ingredients, on_worker, mailbox.queue): job for job in jobs
        }
        try:
            while running:
                done, _ = ray.wait(list(running), timeout=_SECONDS_BETWEEN_NOTES)
                mailbox.read()
                for reference in done:
                    with failures.of(running.pop(reference)):
                        _raise_what_was_raised(ray, reference)
        except BaseException:
            for reference in running:
                ray.cancel(reference, force=True)
            raise
    failures.raise_if_any()


@contextmanager
def _connected(ray: Any) -> Iterator[None]:  # noqa: ANN401  # a module that may be missing
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _task(ray: Any, settings: RunSettings) -> tuple[Any, RunSettings]:  # noqa: ANN401  # as above
    """The work as a task of the cluster, and the settings for a worker, which sees no GPU but its own."""
    on_gpu = torch.device(settings.device).type == "cuda"
    if on_gpu and ray.cluster_resources().get("GPU", 0) < 1:
        raise ConfigurationError(
            f"Expected a Ray cluster with a GPU for `device` {settings.device!r}, but there is none in it. "
            "Choose `cpu`, or a cluster with GPUs."
        )
    task = ray.remote(num_cpus=_CPUS, num_gpus=int(on_gpu), max_retries=_LOST_WORKERS)(_work)
    return task, replace(settings, device="cuda") if on_gpu else settings


def _work(job: Job, folder: Path, workbench: ResourceProvider, settings: RunSettings, queue: Any) -> Exception | None:  # noqa: ANN401
    """What a worker does; what was expected to go wrong is returned, as Ray would disguise it."""
    torch.set_num_threads(_CPUS)
    letters = _Letters(queue)
    try:
        # The worker that had the cell before may still be dying.
        run_job(job, folder, workbench, settings, letters.send, timeout=_PATIENCE)
    except (DriftproofError, OSError) as error:
        return error
    finally:
        letters.wait()
    return None


def _raise_what_was_raised(ray: Any, reference: Any) -> None:  # noqa: ANN401  # as above
    try:
        error = ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as lost:
        raise ExecutionError(f"Its worker was lost {_LOST_WORKERS + 1} times. Run it again to go on: {lost}") from lost
    if error is not None:
        raise error


class _Letters:
    """Notes on their way to whoever started the run: every row, of the rest a few a second."""

    def __init__(self, queue: Any) -> None:  # noqa: ANN401  # as above
        self._queue = queue
        self._sent = -_SECONDS_BETWEEN_NOTES
        self._last: list[Any] = []

    def send(self, note: ProgressEvent) -> None:
        now = time.monotonic()
        if note.row is not None or now - self._sent >= _SECONDS_BETWEEN_NOTES:
            # As bytes, so that the process in between need not know what a note is.
            self._last = [self._queue.actor.put_nowait.remote(pickle.dumps(note))]
            self._sent = now

    def wait(self) -> None:
        """Until the last one has arrived, though not for ever."""
        if self._last:
            require("ray", "Running cells on a cluster", "'driftproof[ray]'").wait(self._last, timeout=_PATIENCE)


class _Mailbox:
    """Where the workers' notes arrive."""

    def __init__(self, told: ProgressCallback) -> None:
        queues = require("ray.util.queue", "Running cells on a cluster", "'driftproof[ray]'")
        self.queue = queues.Queue(actor_options={"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1})
        self._told = told

    def read(self) -> None:
        """Tell what has arrived."""
        for letter in self.queue.get_nowait_batch(self.queue.size()):
            self._told(pickle.loads(letter))


@contextmanager
def _mailbox(told: ProgressCallback) -> Iterator[_Mailbox]:
    mailbox = _Mailbox(told)
    try:
        yield mailbox
        mailbox.read()
    finally:
        mailbox.queue.shutdown(force=True)
