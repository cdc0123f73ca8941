"""One thread at a time, and locks that a forked child can use."""

import os
import time
import weakref
from collections.abc import Callable
from functools import wraps
from threading import RLock
from types import TracebackType
from typing import Any, TypeVar, cast

from driftproof.errors import CallOrderError

__all__ = ["ForkSafeLock", "synchronized"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_FORK_WAIT = 10.0
"""Seconds that a fork waits for the steps of other threads to end."""


class ForkSafeLock:
    """A reentrant lock; a fork waits until no other thread holds it.

    The child of a fork has one thread. A lock that another thread held would stay locked there for good, and what it
    guards would be half changed. If that thread goes on for more than ten seconds, the process forks all the same, and
    the child gets a named error in place of the lock.

    Examples:
        >>> lock = ForkSafeLock()
        >>> with lock, lock:
        ...     print("held twice by this thread")
        held twice by this thread
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._interrupted = False
        with _forking:
            _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._interrupted:
            self._lock.release()
            raise CallOrderError(
                "Expected a fork between two calls of the adapter, but another thread was in the middle of one. "
                "Make a new adapter in this process and load a saved state."
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def acquire_before(self, deadline: float) -> bool:
        """Acquire the lock if it comes free in time."""
        return self._lock.acquire(timeout=max(0.0, deadline - time.monotonic()))

    def release(self) -> None:
        """Release the lock once."""
        self._lock.release()

    def replace(self) -> None:
        """Replace the lock of a thread that does not exist in this process."""
        self._lock = RLock()
        self._interrupted = True


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()
_held: list[ForkSafeLock] = []
_missed: list[ForkSafeLock] = []
_forking = RLock()


def _before_fork() -> None:
    _forking.acquire()
    deadline = time.monotonic() + _FORK_WAIT
    for lock in list(_locks):
        (_held if lock.acquire_before(deadline) else _missed).append(lock)


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().release()
    _missed.clear()
    _forking.release()


def _after_fork_in_child() -> None:
    for lock in _missed:
        lock.replace()
    _after_fork_in_parent()


if hasattr(os, "register_at_fork"):  # where there is no fork, there is nothing to do
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def synchronized(method: _Function) -> _Function:
    """Run a method while holding the object's `_lock`.

    Examples:
        >>> class Counter:
        ...     def __init__(self):
        ...         self._lock, self.count = ForkSafeLock(), 0
        ...
        ...     @synchronized
        ...     def increment(self):
        ...         self.count += 1
        >>> counter = Counter()
        >>> counter.increment()
        >>> counter.count
        1
    """

    @wraps(method)
    def wrapper(self: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the method's own
        with self._lock:
            return method(self, *args, **kwargs)

    return cast("_Function", wrapper)
