"""One thread at a time."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["synchronized"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def synchronized(method: _Function) -> _Function:
    """Run a method while holding the object's `_lock`.

    Examples:
        >>> from threading import RLock
        >>> class Counter:
        ...     def __init__(self):
        ...         self._lock, self.count = RLock(), 0
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
