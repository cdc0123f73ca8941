"""A measured value with the number of samples it is over."""

import math
from typing import NamedTuple

__all__ = ["Ratio", "make_ratio"]


class Ratio(NamedTuple):
    """A value and the number of samples or pixels that it is over."""

    value: float
    samples: int


def make_ratio(part: int, whole: int, scale: int = 1) -> Ratio:
    """Return part over whole, times the scale; NaN of an empty whole.

    Examples:
        >>> make_ratio(1, 4, scale=100)
        Ratio(value=25.0, samples=4)
    """
    return Ratio(scale * part / whole if whole else math.nan, whole)
