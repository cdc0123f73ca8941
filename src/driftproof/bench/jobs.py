"""Jobs: a run and the number of rounds it should reach."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from driftproof.bench.costs import run_costs
from driftproof.bench.gradients import run_gradients
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.runner import ProgressCallback, RunContext, RunSettings, run_stream
from driftproof.bench.spec import Spec
from driftproof.bench.store import Store
from driftproof.validation import check_choice

__all__ = ["Job", "run_job"]

_TASKS: dict[str, Callable[[RunContext], None]] = {
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
    job: Job, folder: Path, resources: LocalFiles, settings: RunSettings, callback: ProgressCallback, wait: float = 0.0
) -> None:
    """Run one job until its target round; do nothing if the run is already there.

    The arguments are those of `run_locally`; `wait` is how many seconds to wait if another process has the same run.
    """
    task = _TASKS[check_choice("task", job.spec.task, _TASKS)]
    run = Store(folder).run(job.spec)
    with run.locked(wait):
        task(RunContext(job.spec, run, resources, job.rounds, settings, callback))
