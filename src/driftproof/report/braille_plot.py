"""A canvas of braille characters, with eight dots in each."""

import itertools
from collections.abc import Sequence

__all__ = ["BrailleCanvas"]

_BLANK = 0x2800
_DOT_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by row and column of its dot."""


class BrailleCanvas:
    """A rectangle of characters with its origin at the upper left.

    Args:
        width: In characters.
        height: In lines.

    Examples:
        >>> canvas = BrailleCanvas(6, 2)
        >>> canvas.draw_line([(0, 1), (5, 0)], "o")
        >>> for line in canvas.to_lines():
        ...     print(line.rstrip())
           ⢀⡠o
        o⠒⠉⠁
    """

    def __init__(self, width: int, height: int) -> None:
        self._dots = [[0] * width for _ in range(height)]
        self._markers: dict[tuple[int, int], str] = {}

    def draw_line(self, points: Sequence[tuple[float, float]], marker: str) -> None:
        """Connect points, given as column and row, and put a marker on each."""
        for (x, y), (to_x, to_y) in itertools.pairwise(points):
            steps = max(1, round(max(2 * abs(to_x - x), 4 * abs(to_y - y))))
            for step in range(steps + 1):
                self._set_dot(x + (to_x - x) * step / steps, y + (to_y - y) * step / steps)
        for x, y in points:
            self._markers[int(y + 0.5), int(x + 0.5)] = marker

    def to_lines(self) -> list[str]:
        """The text, line by line from top to bottom."""
        return [
            "".join(self._markers.get((row, column)) or _braille_character(dots) for column, dots in enumerate(line))
            for row, line in enumerate(self._dots)
        ]

    def _set_dot(self, x: float, y: float) -> None:
        column, row = int(2 * (x + 0.5)), int(4 * (y + 0.5))
        self._dots[row // 4][column // 2] |= _DOT_BITS[row % 4][column % 2]


def _braille_character(dots: int) -> str:
    return chr(_BLANK + dots) if dots else " "
