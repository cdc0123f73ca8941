"""One cell after the other, here."""

from collections.abc import Sequence
from pathlib import Path

from driftproof.bench.executors.failures import Failures
from driftproof.bench.jobs import Job, run_job
from driftproof.bench.runner import RunSettings, ProgressCallback, ResourceProvider

__all__ = ["run_locally"]


def run_locally(
    jobs: Sequence[Job],
    folder: Path,
    workbench: ResourceProvider,
    settings: RunSettings,
    told: ProgressCallback,
    failures: Failures | None = None,
) -> None:
    """Run every job in this process, in order; one that fails does not keep the others from being run.

    Args:
        jobs: What to do.
        folder: The results folder.
        workbench: Where the ingredients come from.
        settings: How to run the jobs.
        told: Hears how it goes.
        failures: What went wrong with other jobs before, to be told together.
    """
    failures = failures or Failures(told)
    for job in jobs:
        with failures.of(job):
            run_job(job, folder, workbench, settings, told)
    failures.raise_if_any()
