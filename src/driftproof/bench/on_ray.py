"""Run jobs in parallel on a Ray cluster."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from driftproof.bench.jobs import Failures, Job, run_job, to_named_error
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.runner import ProgressCallback, ProgressEvent, RunSettings
from driftproof.bench.store import Store
from driftproof.errors import ConfigurationError, DriftproofError, ExecutionError
from driftproof.optional import require

__all__ = ["run_on_ray"]

_CPUS = 1
_MAX_RETRIES = 10
_LOCK_TIMEOUT = 60.0
_POLL_INTERVAL = 0.5


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
    paths. The arguments are those of `run_locally`; `resources` is pickled. Events are the rows that workers write.
    """
    ray = require("ray", "Running cells on a cluster", "'driftproof[ray]'")
    failures, store = failures or Failures(callback), Store(Path(folder).absolute())
    reported = {job: store.run(job.spec).length for job in jobs}
    with _connect(ray):
        task, worker_settings = _make_task(ray, settings)
        shared, path = ray.put(resources), [str(Path.cwd()), *(entry for entry in sys.path if entry)]
        running = {task.remote(path, job, store.folder, shared, worker_settings): job for job in jobs}
        try:
            while running:
                done, _ = ray.wait(list(running), timeout=_POLL_INTERVAL)
                for job in running.values():
                    reported[job] = _report_rows(store, job, reported[job], callback)
                for reference in done:
                    with failures.collect(running.pop(reference)):
                        _reraise(ray, reference)
        except BaseException:
            for reference in running:
                ray.cancel(reference, force=True)
            raise
    failures.raise_if_any()


@contextmanager
def _connect(ray: Any) -> Iterator[None]:  # noqa: ANN401  # a module that may be missing
    """Connect to a cluster if this process is not; one that this starts is stopped again."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


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
    path: Sequence[str], job: Job, folder: Path, resources: LocalFiles, settings: RunSettings
) -> DriftproofError | None:
    """Run a job on a worker; errors are returned, because Ray would wrap a raised one."""
    torch.set_num_threads(_CPUS)
    sys.path.extend(entry for entry in path if entry not in sys.path)  # modules of the user's are imported by name
    try:
        # The lost worker that had the run before may still hold its lock.
        run_job(job, folder, resources, settings, lambda event: None, wait=_LOCK_TIMEOUT)
    except Exception as error:
        return to_named_error(error, job).with_traceback(None)
    return None


def _report_rows(store: Store, job: Job, reported: int, callback: ProgressCallback) -> int:
    """Send an event for every row after those reported before, and return the number of rows."""
    run = store.run(job.spec)
    if run.length <= reported:
        return reported
    rows = run.rows
    for number, row in enumerate(rows[reported:], start=reported + 1):
        total = max(len(rows), job.rounds * len(job.spec.domains))
        callback(ProgressEvent(job.spec, "measured", number, total, row))
    return len(rows)


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
