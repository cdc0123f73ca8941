"""Run jobs in parallel on a Ray cluster."""

import logging
import os
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from driftproof.bench.jobs import Failures, Job, run_job, to_named_error
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.runner import ProgressCallback, ProgressEvent, RunSettings
from driftproof.errors import ConfigurationError, DriftproofError, ExecutionError
from driftproof.optional import require

__all__ = ["run_on_ray"]

_CPUS = 1
_MAX_RETRIES = 10
_TIMEOUT = 60.0
_EVENT_INTERVAL = 0.2
_require = partial(require, purpose="Running cells on a cluster", install="'driftproof[ray]'")


def run_on_ray(
    jobs: Sequence[Job],
    folder: Path,
    resources: LocalFiles,
    settings: RunSettings,
    callback: ProgressCallback,
    failures: Failures | None = None,
) -> None:
    """Run each job as a task of a Ray cluster; if a worker dies, another resumes its run.

    Uses the cluster that this process is connected to, else the one that `RAY_ADDRESS` names or that runs on this
    machine. If there is none, one is started and stopped again. Every task takes one CPU, and one GPU if the device is
    a GPU. All machines need the results folder, the files that `resources` reads, and modules of the user's at the same
    paths. The arguments are those of `run_locally`; `resources` is pickled. A run that changes workers repeats some of
    its events.
    """
    ray = _require("ray")
    failures = failures or Failures(callback)
    with _connect(ray) as queue:
        task, worker_settings = _make_task(ray, settings)
        shared, where = ray.put(resources), Path(folder).absolute()
        path = [str(Path.cwd()), *(entry for entry in sys.path if entry)]
        running = {task.remote(queue, path, job, where, shared, worker_settings): job for job in jobs}
        try:
            while running:
                done, _ = ray.wait(list(running), timeout=_EVENT_INTERVAL)
                _dispatch(queue, callback)
                for reference in done:
                    with failures.collect(running.pop(reference)):
                        _reraise(ray, reference)
        except BaseException:
            for reference in running:
                ray.cancel(reference, force=True)
            raise
        _dispatch(queue, callback)
    failures.raise_if_any()


@contextmanager
def _connect(ray: Any) -> Iterator[Any]:  # noqa: ANN401  # a module that may be missing
    """Connect to a cluster, if this process is not, and yield a queue for events."""
    with ExitStack() as stack:
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            stack.callback(ray.shutdown)
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
        queue = _require("ray.util.queue").Queue(actor_options=options)
        stack.callback(queue.shutdown, force=True)
        yield queue


def _make_task(ray: Any, settings: RunSettings) -> tuple[Any, RunSettings]:  # noqa: ANN401  # as above
    """Return the remote function, and the settings of a worker, which sees only its own GPU."""
    on_gpu = torch.device(settings.device).type == "cuda"
    if on_gpu and ray.cluster_resources().get("GPU", 0) < 1:
        raise ConfigurationError(
            f"Expected a Ray cluster with a GPU for `device` {settings.device!r}, but it has none. "
            "Choose `cpu`, or a cluster with GPUs."
        )
    task = ray.remote(num_cpus=_CPUS, num_gpus=int(on_gpu), max_retries=_MAX_RETRIES)(_run_remote)
    return task, replace(settings, device="cuda") if on_gpu else settings


def _run_remote(
    queue: Any,  # noqa: ANN401  # as above
    path: Sequence[str],
    job: Job,
    folder: Path,
    resources: LocalFiles,
    settings: RunSettings,
) -> DriftproofError | None:
    """Run a job on a worker; errors are returned, because Ray would wrap a raised one."""
    torch.set_num_threads(_CPUS)
    sys.path.extend(entry for entry in path if entry not in sys.path)  # modules of the user's are imported by name
    sender = _EventSender(queue)
    try:
        # The lost worker that had the run before may still hold its lock.
        run_job(job, folder, resources, settings, sender.send, wait=_TIMEOUT)
    except Exception as error:
        return to_named_error(error, job).with_traceback(None)
    finally:
        sender.flush()
    return None


def _reraise(ray: Any, reference: Any) -> None:  # noqa: ANN401  # as above
    try:
        error = ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as lost:
        times = _MAX_RETRIES + 1
        raise ExecutionError(f"The run's worker died {times} times. Run it again to resume: {lost}") from lost
    if error is not None:
        raise error


class _EventSender:
    """Sends events from a worker: all with rows, of the others a few per second."""

    def __init__(self, queue: Any) -> None:  # noqa: ANN401  # as above
        self._queue = queue
        self._last_time = -_EVENT_INTERVAL
        self._pending: list[Any] = []

    def send(self, event: ProgressEvent) -> None:
        now = time.monotonic()
        if event.row is not None or now - self._last_time >= _EVENT_INTERVAL:
            # As bytes, so that the queue's process need not import driftproof.
            self._pending = [self._queue.actor.put_nowait.remote(pickle.dumps(event))]
            self._last_time = now

    def flush(self) -> None:
        """Wait until the last event has arrived, up to a timeout."""
        if self._pending:
            _require("ray").wait(self._pending, timeout=_TIMEOUT)


def _dispatch(queue: Any, callback: ProgressCallback) -> None:  # noqa: ANN401  # as above
    """Pass the workers' events that have arrived to the callback."""
    for message in queue.get_nowait_batch(queue.size()):
        callback(pickle.loads(message))
