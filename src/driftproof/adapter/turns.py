"""One thread at a time."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

__all__ = ["in_turn", "new_turn"]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class _InTurn(Protocol):
    _turn: AbstractContextManager[Any]


_Owner = TypeVar("_Owner", bound=_InTurn)


def new_turn() -> AbstractContextManager[Any]:
    """What an object keeps as `_turn`: the thread that holds it may call on, the others wait."""
    return RLock()


def in_turn(method: Callable[Concatenate[_Owner, _Given], _Result]) -> Callable[Concatenate[_Owner, _Given], _Result]:
    """Have threads run such methods of one object one after the other.

    Examples:
        >>> class Counter:
        ...     def __init__(self):
        ...         self._turn, self.count = new_turn(), 0
        ...
        ...     @in_turn
        ...     def up(self):
        ...         self.count += 1
        >>> counter = Counter()
        >>> counter.up()
        >>> counter.count
        1
    """

    @wraps(method)
    def alone(self: _Owner, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        with self._turn:
            return method(self, *args, **kwargs)

    return alone
