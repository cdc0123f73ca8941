"""What there is to do, and doing one piece of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from driftproof.bench.costs import run_costs
from driftproof.bench.gradients import run_gradients
from driftproof.bench.runner import RunSettings, ProgressCallback, ResourceProvider, run_stream
from driftproof.bench.spec import Spec
from driftproof.bench.store import Run, Store
from driftproof.validation import check_choice

__all__ = ["TASKS", "Job", "run_job"]

TASKS: dict[str, Callable[[Spec, Run, ResourceProvider, int, RunSettings, ProgressCallback], None]] = {
    "stream": run_stream,
    "costs": run_costs,
    "gradients": run_gradients,
}


@dataclass(frozen=True)
class Job:
    """A cell, and how far it should go.

    Attributes:
        spec: The cell.
        rounds: How many rounds there should be.
    """

    spec: Spec
    rounds: int


def run_job(
    job: Job, folder: Path, workbench: ResourceProvider, settings: RunSettings, told: ProgressCallback, *, timeout: float = 0.0
) -> None:
    """Bring one cell of a results folder to where it should be; nothing happens if it is there already.

    Args:
        job: What to do.
        folder: The results folder.
        workbench: Where the ingredients come from.
        settings: How to run it.
        told: Hears how it goes.
        timeout: Seconds to wait for another process that is at work on the cell.
    """
    cell = Store(folder).run(job.spec)
    task = TASKS[check_choice("task", job.spec.task, TASKS)]
    with cell.locked(timeout):
        task(job.spec, cell, workbench, job.rounds, settings, told)
