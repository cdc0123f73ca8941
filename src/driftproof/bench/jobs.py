"""Jobs: a run and the number of rounds it should reach."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from driftproof.bench.costs import run_costs
from driftproof.bench.gradients import run_gradients
from driftproof.bench.runner import ProgressCallback, ResourceProvider, RunContext, RunSettings, run_stream
from driftproof.bench.spec import Spec
from driftproof.bench.store import Store
from driftproof.validation import check_choice

__all__ = ["TASKS", "Job", "run_job"]

TASKS: dict[str, Callable[[RunContext], None]] = {
    "stream": run_stream,
    "costs": run_costs,
    "gradients": run_gradients,
}


@dataclass(frozen=True)
class Job:
    """A run and its target number of rounds, counted from the beginning."""

    spec: Spec
    rounds: int


def run_job(
    job: Job,
    folder: Path,
    resources: ResourceProvider,
    settings: RunSettings,
    callback: ProgressCallback,
    *,
    timeout: float = 0.0,
) -> None:
    """Run one job until its target round; do nothing if the run is already there.

    Args:
        job: The run and its target.
        folder: Results folder.
        resources: Provides model, stream and source data.
        settings: How to execute it.
        callback: Receives progress events.
        timeout: Seconds to wait for the lock if another process works on the same run.
    """
    run = Store(folder).run(job.spec)
    task = TASKS[check_choice("task", job.spec.task, TASKS)]
    with run.locked(timeout):
        task(RunContext(job.spec, run, resources, job.rounds, settings, callback))
