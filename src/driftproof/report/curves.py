"""Draw curves over rounds: one panel per setting, each curve labeled at its end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from driftproof.report.responsive import (
    INK,
    PAPER,
    QUIET,
    RULE,
    Layout,
    ellipsize,
    import_matplotlib,
    max_text_width,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curve", "Panel", "draw_curves"]

_PALETTE = {
    "source": "#5c6670",
    "bn_adapt": "#8a6d3b",
    "gce": "#E69F00",
    "conjugate": "#56B4E9",
    "ent": "#009E73",
    "tent": "#D55E00",
    "eata": "#0072B2",
    "swr": "#CC79A7",
    "cotta": "#8F7EE5",
    "ttn": "#3E9651",
}
"""By method; based on the color-blind safe palette of Okabe and Ito."""

_MARKERS = "osD^vPXphd<"
_DASHES = {"": (0, (4, 2)), "crowd": "solid", "confident": (0, (1, 1.5)), "certain": (0, (6, 1.5, 1, 1.5))}

_MIN_SPAN = 5.0
"""Minimum range of an axis in percentage points, so that noise does not look like a trend."""

_LEFT_MARGIN, _LABEL_GAP = 2.6, 20
"""Space for the tick labels of the y axis, in text heights, and between a curve's end and its label, in pixels."""


@dataclass(frozen=True)
class Curve:
    """One curve.

    Attributes:
        name: Its label.
        family: Curves of one family share a color: the method's name, possibly with its options.
        selection: The selection rule, which decides the line style.
        values: One for each round.
        low: The minimum over seeds for each round.
        high: The maximum.
        unhealthy_from: The first round in which adaptation was not healthy, marked with a cross; None if there is none.
    """

    name: str
    family: str
    selection: str
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    unhealthy_from: int | None = None


@dataclass(frozen=True)
class Panel:
    """The content of one pair of axes.

    Attributes:
        title: Shown above the axes.
        unit: Label of the y axis.
        curves: The curves.
        full_range: Whether the y axis runs from 0 to 100.
        segments: Names of segments of equal length along the x axis; empty if the x axis counts rounds.
    """

    title: str
    unit: str
    curves: Sequence[Curve]
    full_range: bool = False
    segments: Sequence[str] = ()


def draw_curves(panels: Sequence[Panel], layout: Layout) -> "Figure":
    """Draw the panels of one figure on a common scale.

    Args:
        panels: From left to right; from top to bottom on narrow pages.
        layout: Of the page.
    """
    columns = min(layout.panels, len(panels))
    rows = math.ceil(len(panels) / columns)
    line = 1.32 * layout.text
    left, top, bottom = _LEFT_MARGIN * layout.text, 3.4 * line, 2.8 * line
    curves = [curve for panel in panels for curve in panel.curves]
    rounds = max(len(curve.values) for curve in curves)
    right = _LABEL_GAP + 12 + max_text_width((_label(curve, rounds, layout) for curve in curves), layout.text)
    labels = 1.2 * line * max(len(panel.curves) for panel in panels)
    tall = max(labels, 0.55 * min(layout.width / columns, 560))
    height = rows * (top + tall + bottom)
    figure, limits = new_figure(layout, height), _axis_limits(panels)
    for index, panel in enumerate(panels):
        x = layout.width / columns * (index % columns) + left
        y = height - (index // columns) * (top + tall + bottom) - top - tall
        width = layout.width / columns - left - right
        axes = figure.add_axes((x / layout.width, y / height, width / layout.width, tall / height))
        _draw_panel(axes, panel, layout, limits)
        _label_curves(axes, panel, layout, limits, spacing=line / tall, label_x=1 + _LABEL_GAP / width)
    return figure


def _draw_panel(axes: "Axes", panel: Panel, layout: Layout, limits: tuple[float, float]) -> None:
    rounds = max(len(curve.values) for curve in panel.curves)
    axes.set_ylim(*limits)
    margin = 0.02 * (rounds - 1) or 0.5
    axes.set_xlim(1 - margin, rounds + margin)
    axes.yaxis.set_major_locator(import_matplotlib("ticker").MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.grid(axis="y", color=RULE, linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=layout.text, length=0, pad=5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if panel.segments:
        _draw_segments(axes, panel.segments, rounds, layout)
    else:
        axes.set_xticks(_ticks(rounds))
        axes.set_xlabel("round", fontsize=layout.text, loc="right", labelpad=1)
    for curve in panel.curves:
        _draw_curve(axes, curve, rounds, segments=len(panel.segments) or 1)


def _draw_segments(axes: "Axes", segments: Sequence[str], points: int, layout: Layout) -> None:
    length, room = points / len(segments), axes.get_position().width * layout.width / len(segments)
    crowded = max_text_width(segments, layout.text) > room
    names = [ellipsize(name, layout.text, 2 * room) if crowded else name for name in segments]
    labels = [f"\n{name}" if crowded and index % 2 else name for index, name in enumerate(names)]
    axes.set_xticks([0.5 + length * (index + 0.5) for index in range(len(segments))], labels)
    for index in range(1, len(segments)):
        axes.axvline(0.5 + length * index, color=RULE, linewidth=1, zorder=0)


def _label_curves(
    axes: "Axes", panel: Panel, layout: Layout, limits: tuple[float, float], *, spacing: float, label_x: float
) -> None:
    low, high, rounds = *limits, max(len(curve.values) for curve in panel.curves)
    heading: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": layout.text}
    edge = -_LEFT_MARGIN * layout.text
    axes.annotate(panel.title, (0, 1), (edge, 2.2 * layout.text), fontweight="bold", **heading)
    axes.annotate(panel.unit, (0, 1), (edge, 0.9 * layout.text), color=QUIET, **heading)
    ends = [low if math.isnan(curve.values[-1]) else curve.values[-1] for curve in panel.curves]
    heights = spread_labels([(end - low) / (high - low) for end in ends], spacing)
    for curve, end, label_y in zip(panel.curves, ends, heights, strict=True):
        style, reached = _line_style(curve), len(curve.values)
        leader = {"color": style["color"], "linewidth": 0.7, "linestyle": "-" if reached == rounds else ":"}
        axes.annotate(
            "", (reached, end), (label_x, label_y), textcoords="axes fraction", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "shrinkA": 0, "shrinkB": 0, **leader},
        )  # fmt: skip
        axes.plot(label_x, label_y, transform=axes.transAxes, clip_on=False, **style)
        axes.annotate(
            _label(curve, rounds, layout), (label_x, label_y), (7, -0.5), va="center", annotation_clip=False, **heading
        )


def _label(curve: Curve, rounds: int, layout: Layout) -> str:
    reached = len(curve.values)
    room = 0.45 * layout.width / layout.panels
    return ellipsize(curve.name, layout.text, room) + ("" if reached == rounds else f" @{reached}")


def _ticks(rounds: int) -> list[int]:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, rounds) if rounds <= 6 * step)
    return sorted({1, *range(step, rounds + 1, step)})


def _draw_curve(axes: "Axes", curve: Curve, rounds: int, segments: int = 1) -> None:
    style, length = _line_style(curve), len(curve.values) // segments
    for start in range(0, len(curve.values), length):
        part = slice(start, start + length)
        steps, low, high = range(start + 1, start + length + 1), curve.low[part], curve.high[part]
        if any(least < most for least, most in zip(low, high, strict=True)):
            axes.fill_between(steps, low, high, color=style["color"], alpha=0.15, linewidth=0)
        axes.plot(steps, curve.values[part], markevery=max(1, rounds // 10), clip_on=False, **style)
    if curve.unhealthy_from is not None:
        at = curve.unhealthy_from, curve.values[curve.unhealthy_from - 1]
        axes.plot(*at, "x", markersize=11, markeredgewidth=2, color=INK, zorder=3, clip_on=False)


def _line_style(curve: Curve) -> dict[str, Any]:
    method = curve.family.partition(",")[0]
    color, index = _PALETTE.get(method, INK), list(_PALETTE).index(method) if method in _PALETTE else -1
    return {
        "color": color,
        "linestyle": _DASHES.get(curve.selection, "solid"),
        "linewidth": 2,
        "marker": _MARKERS[index],
        "markersize": 6,
        "markerfacecolor": color if curve.selection else PAPER,
        "markeredgecolor": color,
    }


def _axis_limits(panels: Sequence[Panel]) -> tuple[float, float]:
    if any(panel.full_range for panel in panels):
        return 0.0, 100.0
    shown = [value for panel in panels for curve in panel.curves for value in (*curve.low, *curve.high)]
    finite = [value for value in shown if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    padding = max(0.06 * (high - low), (_MIN_SPAN - (high - low)) / 2)
    return max(0.0, low - padding), high + padding


def spread_labels(positions: Sequence[float], spacing: float) -> list[float]:
    """Move label positions in 0..1 apart as little as possible, keeping their order.

    Args:
        positions: The preferred positions.
        spacing: The minimum distance between two labels.

    Examples:
        >>> [round(position, 3) for position in spread_labels([0.5, 0.52, 0.9], 0.1)]
        [0.46, 0.56, 0.9]
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    blocks: list[tuple[float, list[int]]] = []
    for index in order:
        center, members = positions[index], [index]
        while blocks and center - spacing * len(members) / 2 < blocks[-1][0] + spacing * len(blocks[-1][1]) / 2:
            members = blocks.pop()[1] + members
            mean = sum(positions[member] for member in members) / len(members)
            center = _clamp_center(mean, spacing * (len(members) - 1) / 2)
        blocks.append((center, members))
    moved = dict.fromkeys(order, 0.0)
    for center, members in blocks:
        for rank, member in enumerate(members):
            moved[member] = center + spacing * (rank - (len(members) - 1) / 2)
    return [moved[index] for index in range(len(positions))]


def _clamp_center(center: float, half_width: float) -> float:
    return min(max(center, half_width), max(1 - half_width, half_width))
