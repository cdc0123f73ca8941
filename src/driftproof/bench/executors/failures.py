"""Collect the errors of runs until the others are done."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from driftproof.bench.jobs import Job
from driftproof.bench.runner import ProgressCallback, ProgressEvent
from driftproof.bench.spec import Spec
from driftproof.errors import DriftproofError, ExecutionError
from driftproof.named import describe_own_error

__all__ = ["Failures", "to_named_error"]

_MAX_NAMES = 3
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


class Failures:
    """Runs that failed, and their errors; a full disk, which would stop the other runs as well, is not collected.

    Args:
        callback: Receives an event for each failure.
    """

    def __init__(self, callback: ProgressCallback) -> None:
        self._callback = callback
        self._specs: set[Spec] = set()
        self.errors: dict[Spec, DriftproofError] = {}

    @contextmanager
    def collect(self, job: Job) -> Iterator[None]:
        """Collect an error raised while a job runs."""
        self._specs.add(job.spec)
        try:
            yield
        except Exception as error:
            self.errors[job.spec] = to_named_error(error, job)
            self._callback(ProgressEvent(job.spec, "failed", 0))

    def raise_if_any(self) -> None:
        """Raise one error that lists the failed runs; runs with the same error are listed together."""
        if not self.errors:
            return
        done = "; the others are done" if len(self.errors) < len(self._specs) else ""
        names: dict[str, list[str]] = {}
        for spec, error in self.errors.items():
            names.setdefault(str(error), []).append(spec.name)
        lines = [f"{_abbreviate(failed)}: {error}" for error, failed in names.items()]
        raise ExecutionError(
            "\n".join([f"{len(self.errors)} of {len(self._specs)} runs failed{done}.", *lines]), failures=self.errors
        ) from next(iter(self.errors.values()))


def to_named_error(error: Exception, job: Job) -> DriftproofError:
    """Return an error with the run's method, file and line; the library's errors name what is wrong already."""
    if isinstance(error, OSError) and error.errno in _FULL_DISK:
        raise error

    if isinstance(error, DriftproofError):
        return error
    return describe_own_error(f"the run of {job.spec.method}", error, ExecutionError)


def _abbreviate(names: list[str]) -> str:
    """Name the first few: if every run lacks the same file, the file is what matters."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"
