"""One thread at a time."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

__all__ = ["synchronized"]

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


class _HasLock(Protocol):
    _lock: AbstractContextManager[Any]


_Owner = TypeVar("_Owner", bound=_HasLock)


def synchronized(
    method: Callable[Concatenate[_Owner, _Params], _Result],
) -> Callable[Concatenate[_Owner, _Params], _Result]:
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
    def wrapper(self: _Owner, /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        with self._lock:
            return method(self, *args, **kwargs)

    return wrapper
