"""Draw heatmaps: one number for each method and domain, darker is higher."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from driftproof.report.numbers import format_number
from driftproof.report.responsive import INK, PAPER, Layout, ellipsize, import_matplotlib, max_text_width, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["HeatmapData", "draw_heatmap"]

_MAX_COLUMNS_NARROW, _MAX_CELL_WIDTH = 6, 7
_LABEL_ANGLE = 50
_SINE, _COSINE = math.sin(math.radians(_LABEL_ANGLE)), math.cos(math.radians(_LABEL_ANGLE))
_SHADES = ((250, 246, 239), (243, 210, 165), (227, 154, 82), (180, 85, 26), (122, 42, 8))


@dataclass(frozen=True)
class HeatmapData:
    """Numbers by method and domain.

    Attributes:
        methods: Names of the rows.
        domains: Names of the columns.
        values: Row by row.
        digits: After the decimal point.
        has_mean: Whether the last domain is the mean of the others; a gap separates it.
    """

    methods: Sequence[str]
    domains: Sequence[str]
    values: Sequence[Sequence[float]]
    digits: int = 1
    has_mean: bool = True


def draw_heatmap(heatmap: HeatmapData, layout: Layout) -> "Figure":
    """Draw methods as rows on wide pages; as columns, a few per table, on narrow ones.

    Args:
        heatmap: The numbers.
        layout: Of the page.
    """
    wide, room = layout.panels > 1, 0.4 * layout.width
    methods, domains = (
        [ellipsize(name, layout.text, room) for name in names] for names in (heatmap.methods, heatmap.domains)
    )
    heatmap = replace(heatmap, methods=methods, domains=domains)
    starts = range(0, len(methods), _MAX_COLUMNS_NARROW)
    tables = [heatmap] if wide else [_slice_methods(heatmap, start) for start in starts]
    shown = [_OrientedHeatmap(part, transposed=not wide) for part in tables]
    text, cell = layout.text, 2.0 * layout.text
    left = max_text_width((name for part in shown for name in part.rows), text) + 8
    above = _SINE * max_text_width((name for part in shown for name in part.columns), text) + 1.6 * text
    most = max(len(part.columns) for part in shown)
    overhang = max(_overhang(part.columns, text, layout.width - left) for part in shown)
    width = min((layout.width - left) / (most + overhang), _MAX_CELL_WIDTH * text)
    height = sum(above + cell * len(part.rows) + 0.6 * text for part in shown)
    figure, top = new_figure(layout, height), height
    for part in shown:
        tall = cell * len(part.rows)
        right, bottom = left + width * len(part.columns), top - above - tall
        axes = figure.add_axes((left / layout.width, bottom / height, (right - left) / layout.width, tall / height))
        _draw_cells(axes, part, layout, _value_range(heatmap))
        top -= above + tall + 0.6 * text
    return figure


@dataclass(frozen=True)
class _OrientedHeatmap:
    heatmap: HeatmapData
    transposed: bool

    @property
    def rows(self) -> Sequence[str]:
        return self.heatmap.domains if self.transposed else self.heatmap.methods

    @property
    def columns(self) -> Sequence[str]:
        return self.heatmap.methods if self.transposed else self.heatmap.domains

    def value(self, row: int, column: int) -> float:
        return self.heatmap.values[column][row] if self.transposed else self.heatmap.values[row][column]


def _slice_methods(heatmap: HeatmapData, start: int) -> HeatmapData:
    part = slice(start, start + _MAX_COLUMNS_NARROW)
    return replace(heatmap, methods=heatmap.methods[part], values=heatmap.values[part])


def _overhang(names: Sequence[str], text: float, room: float) -> float:
    """By how many columns the rotated labels extend beyond the last one."""
    width = 0.85 * room / len(names)
    return max(
        (_COSINE * max_text_width([name], text) + text) / width + index + 0.5 - len(names)
        for index, name in enumerate(names)
    )


def _value_range(heatmap: HeatmapData) -> tuple[float, float]:
    finite = [value for row in heatmap.values for value in row if math.isfinite(value)] or [0.0]
    return min(finite), max(finite)


def _draw_cells(axes: "Axes", shown: _OrientedHeatmap, layout: Layout, limits: tuple[float, float]) -> None:
    rows, columns = len(shown.rows), len(shown.columns)
    squares, colors = [], []
    for row, column in itertools.product(range(rows), range(columns)):
        value = shown.value(row, column)
        known = math.isfinite(value)
        color = _shade(value, limits) if known else (1.0, 1.0, 1.0, 0.0)
        squares.append([(column, row), (column + 1, row), (column + 1, row + 1), (column, row + 1)])
        colors.append(color)
        axes.text(
            column + 0.5, row + 0.53, _format_value(value, shown.heatmap.digits) if known else "–",
            ha="center", va="center", fontsize=layout.text - 1, color=_contrast_color(color) if known else INK,
        )  # fmt: skip
    axes.add_collection(import_matplotlib("collections").PolyCollection(squares, facecolors=colors, linewidths=0))
    if shown.heatmap.has_mean:
        (axes.axhline if shown.transposed else axes.axvline)(
            (rows if shown.transposed else columns) - 1, color=PAPER, linewidth=4
        )
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.set_xticks([index + 0.5 for index in range(columns)], shown.columns, rotation=_LABEL_ANGLE, ha="left")
    axes.set_yticks([index + 0.5 for index in range(rows)], shown.rows)
    axes.tick_params(labelsize=layout.text, length=0, pad=5, labeltop=True, labelbottom=False, labelcolor=INK)
    for label in axes.get_xticklabels():
        label.set_rotation_mode("anchor")
    axes.spines[:].set_visible(False)


def _shade(value: float, limits: tuple[float, float]) -> tuple[float, ...]:
    low, high = limits
    position = (len(_SHADES) - 1) * (value - low) / (high - low) if high > low else 0.0
    below = min(int(position), len(_SHADES) - 2)
    ends = zip(_SHADES[below], _SHADES[below + 1], strict=True)
    return tuple((start + (position - below) * (end - start)) / 255 for start, end in ends)


def _format_value(value: float, digits: int) -> str:
    return format_number(value, digits if abs(value) < 99.95 else 0)


def _contrast_color(color: Sequence[float]) -> str:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if luminance > 0.179 else "#ffffff"
