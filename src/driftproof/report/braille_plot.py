"""Lines drawn with characters, eight dots to each."""

import itertools
from collections.abc import Sequence

__all__ = ["BrailleCanvas"]

_BLANK = 0x2800
_DOT_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by row and column of its dot."""


class BrailleCanvas:
    """A rectangle of characters, counted from its upper left.

    Args:
        width: In characters.
        height: In lines.

    Examples:
        >>> canvas = BrailleCanvas(6, 2)
        >>> canvas.line([(0, 1), (5, 0)], "o")
        >>> for line in canvas.text():
        ...     print(line.rstrip())
           ⢀⡠o
        o⠒⠉⠁
    """

    def __init__(self, width: int, height: int) -> None:
        self._dots = [[0] * width for _ in range(height)]
        self._marks: dict[tuple[int, int], str] = {}

    def line(self, points: Sequence[tuple[float, float]], mark: str) -> None:
        """Join points, given as column and row, and put a mark on each."""
        for (x, y), (to_x, to_y) in itertools.pairwise(points):
            steps = max(1, round(max(2 * abs(to_x - x), 4 * abs(to_y - y))))
            for step in range(steps + 1):
                self._dot(x + (to_x - x) * step / steps, y + (to_y - y) * step / steps)
        for x, y in points:
            self._marks[int(y + 0.5), int(x + 0.5)] = mark

    def text(self) -> list[str]:
        """The lines, from top to bottom."""
        return [
            "".join(self._marks.get((row, column)) or _braille_character(dots) for column, dots in enumerate(line))
            for row, line in enumerate(self._dots)
        ]

    def _dot(self, x: float, y: float) -> None:
        column, row = int(2 * (x + 0.5)), int(4 * (y + 0.5))
        self._dots[row // 4][column // 2] |= _DOT_BITS[row % 4][column % 2]


def _braille_character(dots: int) -> str:
    return chr(_BLANK + dots) if dots else " "
