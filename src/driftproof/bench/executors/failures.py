"""Collect the errors of runs until the others are done."""

from collections.abc import Iterator
from contextlib import contextmanager

from driftproof.bench.jobs import Job
from driftproof.bench.runner import ProgressCallback, ProgressEvent
from driftproof.errors import DriftproofError, ExecutionError

__all__ = ["Failures"]

_MAX_NAMES = 3


class Failures:
    """Runs that failed, and their errors.

    Only `DriftproofError` is collected. Anything else, such as a full disk, would stop the other runs as well.

    Args:
        callback: Receives an event for each failure.

    Examples:
        >>> from driftproof.bench.spec import Spec
        >>> failures = Failures(callback=lambda event: print(event.stage))
        >>> with failures.collect(Job(Spec("tent", "cifar10-c", "wrn40_2", domains=("fog",)), rounds=1)):
        ...     raise DriftproofError("Expected weights, but there are none.")
        failed
    """

    def __init__(self, callback: ProgressCallback) -> None:
        self._callback = callback
        self._names: set[str] = set()
        self._errors: dict[str, DriftproofError] = {}

    @contextmanager
    def collect(self, job: Job) -> Iterator[None]:
        """Collect an error raised while a job runs."""
        self._names.add(job.spec.name)
        try:
            yield
        except DriftproofError as error:
            self._errors[job.spec.name] = error
            self._callback(ProgressEvent(job.spec, "failed", 0))

    def raise_if_any(self) -> None:
        """Raise one error that lists the failed runs; runs with the same error are listed together."""
        if self._errors:
            done = "; the others are done" if len(self._errors) < len(self._names) else ""
            lines = [f"{len(self._errors)} of {len(self._names)} runs failed{done}."]
            names: dict[str, list[str]] = {}
            for name, error in self._errors.items():
                names.setdefault(str(error), []).append(name)
            lines += [f"{_abbreviate(failed)}: {error}" for error, failed in names.items()]
            raise ExecutionError("\n".join(lines)) from next(iter(self._errors.values()))


def _abbreviate(names: list[str]) -> str:
    """Name the first few: if every run lacks the same file, the file is what matters."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"
