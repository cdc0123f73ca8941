"""What goes wrong with some cells, put aside until the others are done."""

from collections.abc import Iterator
from contextlib import contextmanager

from driftproof.bench.jobs import Job
from driftproof.bench.runner import ProgressEvent, ProgressCallback
from driftproof.errors import DriftproofError, ExecutionError

__all__ = ["Failures"]

_NAMED = 3


class Failures:
    """The cells that could not be measured, and why.

    Only what driftproof raises on purpose is put aside. Anything else, such as a full disk, would stop the other cells
    as well.

    Args:
        told: Hears of every failure when it happens.

    Examples:
        >>> from driftproof.bench.spec import Spec
        >>> failures = Failures(told=lambda note: print(note.stage))
        >>> with failures.of(Job(Spec("tent", "cifar10-c", "wrn40_2", domains=("fog",)), rounds=1)):
        ...     raise DriftproofError("Expected weights, but there are none.")
        failed
    """

    def __init__(self, told: ProgressCallback) -> None:
        self._told = told
        self._seen: set[str] = set()
        self._errors: dict[str, DriftproofError] = {}

    @contextmanager
    def of(self, job: Job) -> Iterator[None]:
        """Put aside what goes wrong with a job."""
        self._seen.add(job.spec.name)
        try:
            yield
        except DriftproofError as error:
            self._errors[job.spec.name] = error
            self._told(ProgressEvent(job.spec, "failed", 0))

    def raise_if_any(self) -> None:
        """Raise one error that says of the cells that failed what was wrong, once for all that failed alike."""
        if self._errors:
            done = "; the others are done" if len(self._errors) < len(self._seen) else ""
            lines = [f"{len(self._errors)} of {len(self._seen)} cells failed{done}."]
            names: dict[str, list[str]] = {}
            for name, error in self._errors.items():
                names.setdefault(str(error), []).append(name)
            lines += [f"{_some(alike)}: {error}" for error, alike in names.items()]
            raise ExecutionError("\n".join(lines)) from next(iter(self._errors.values()))


def _some(names: list[str]) -> str:
    """The first of many: where every cell fails for want of one file, the file is what matters."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
