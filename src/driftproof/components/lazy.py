"""A property that is computed once, on first access."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["lazy_property"]

_Value = TypeVar("_Value")


class lazy_property(Generic[_Value]):  # noqa: N801  # reads as what it decorates with
    """As `functools.cached_property`, without the lock of Python 3.11, which torch.compile cannot trace.

    Examples:
        >>> class Square:
        ...     @lazy_property
        ...     def area(self):
        ...         print("computed")
        ...         return 4
        >>> square = Square()
        >>> square.area, square.area
        computed
        (4, 4)
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> _Value:
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
