"""Jobs, each a run and the number of rounds it should reach, one after the other in this process."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from driftproof.bench.local_files import LocalFiles
from driftproof.bench.runner import ProgressCallback, ProgressEvent, RunContext, RunSettings, run_stream
from driftproof.bench.spec import Spec
from driftproof.bench.store import Store
from driftproof.bench.tasks import run_costs, run_gradients
from driftproof.errors import DriftproofError, ExecutionError
from driftproof.named import describe_own_error
from driftproof.validation import check_choice

__all__ = ["Failures", "Job", "run_job", "run_locally", "to_named_error"]

_MAX_NAMES = 3
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_TASKS = {"stream": run_stream, "costs": run_costs, "gradients": run_gradients}


@dataclass(frozen=True)
class Job:
    """A run and its target number of rounds, counted from the beginning."""

    spec: Spec
    rounds: int


def run_job(
    job: Job, folder: Path, resources: LocalFiles, settings: RunSettings, callback: ProgressCallback, wait: float = 0.0
) -> None:
    """Run one job until its target round; do nothing if the run is already there.

    The arguments are those of `run_locally`; `wait` is how many seconds to wait if another process has the same run.
    """
    task = _TASKS[check_choice("task", job.spec.task, _TASKS)]
    run = Store(folder).run(job.spec)
    with run.locked(wait):
        task(RunContext(job.spec, run, resources, job.rounds, settings, callback))


class Failures:
    """Runs that failed, and their errors; a full disk, which would stop the other runs as well, is not collected."""

    def __init__(self, callback: ProgressCallback) -> None:
        self._callback = callback
        self._specs: set[Spec] = set()
        self._errors: dict[Spec, DriftproofError] = {}

    @contextmanager
    def collect(self, job: Job) -> Iterator[None]:
        """Collect an error raised while a job runs."""
        self._specs.add(job.spec)
        try:
            yield
        except Exception as error:
            self._errors[job.spec] = to_named_error(error, job)
            self._callback(ProgressEvent(job.spec, "failed", 0))

    def raise_if_any(self) -> None:
        """Raise one error that lists the failed runs; of runs with the same error, the first few."""
        if not self._errors:
            return
        done = "; the others are done" if len(self._errors) < len(self._specs) else ""
        lines = [f"{len(self._errors)} of {len(self._specs)} runs failed{done}."]
        for message in dict.fromkeys(map(str, self._errors.values())):
            names = [spec.name for spec, error in self._errors.items() if str(error) == message]
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            lines.append(f"{', '.join(names[:_MAX_NAMES])}{more}: {message}")
        first = next(iter(self._errors.values()))
        raise ExecutionError("\n".join(lines), failures=self._errors) from first


def to_named_error(error: Exception, job: Job) -> DriftproofError:
    """Return an error with the run's method, file and line; the library's errors name what is wrong already."""
    if isinstance(error, OSError) and error.errno in _FULL_DISK:
        raise error
    if isinstance(error, DriftproofError):
        return error
    return describe_own_error(f"the run of {job.spec.method}", error, ExecutionError)


def run_locally(
    jobs: Sequence[Job],
    folder: Path,
    resources: LocalFiles,
    settings: RunSettings,
    callback: ProgressCallback,
    failures: Failures | None = None,
) -> None:
    """Run jobs in order in this process; the others still run if one fails.

    Args:
        jobs: The jobs.
        folder: Results folder.
        resources: Provides model, stream and source data.
        settings: How to execute the jobs.
        callback: Receives progress events.
        failures: Earlier failures to report together with those of these jobs.
    """
    failures = failures or Failures(callback)
    for job in jobs:
        with failures.collect(job):
            run_job(job, folder, resources, settings, callback)
    failures.raise_if_any()
