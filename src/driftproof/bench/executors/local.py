"""Run jobs one after the other in this process."""

from collections.abc import Sequence
from pathlib import Path

from driftproof.bench.executors.failures import Failures
from driftproof.bench.jobs import Job, run_job
from driftproof.bench.runner import ProgressCallback, ResourceProvider, RunSettings

__all__ = ["run_locally"]


def run_locally(
    jobs: Sequence[Job],
    folder: Path,
    resources: ResourceProvider,
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
