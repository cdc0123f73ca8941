"""Curves over rounds: a panel for each setting, every line named where it ends."""

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
"""By method; after Okabe and Ito, whose colors the color-blind can tell apart."""

_MARKERS = "osD^vPXphd<"
_DASHES = {"": (0, (4, 2)), "crowd": "solid", "confident": (0, (1, 1.5)), "certain": (0, (6, 1.5, 1, 1.5))}

_MIN_SPAN = 5.0
"""Percentage points an axis shows at least, so that noise does not look like news."""

_LEFT, _GAP = 2.6, 20
"""Room for the numbers of the upright axis, in letters; and between a curve's end and its name, in pixels."""


@dataclass(frozen=True)
class Curve:
    """One line.

    Attributes:
        name: What it is called.
        family: What it shares its color with: a method's name, or more than that where there are several of a name.
        selection: What it selects by; decides between dashed and solid.
        values: One for each round.
        low: The least over seeds for each round.
        high: The greatest.
    """

    name: str
    family: str
    selection: str
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """What is drawn in one pair of axes.

    Attributes:
        title: Above it.
        unit: On the upright axis.
        curves: The lines.
        whole: Whether the axis runs from 0 to 100.
        stretches: What the curves pass through, each as long as the others; empty where they count rounds.
    """

    title: str
    unit: str
    curves: Sequence[Curve]
    whole: bool = False
    stretches: Sequence[str] = ()


def draw_curves(panels: Sequence[Panel], layout: Layout) -> "Figure":
    """The panels of one figure, on a common scale.

    Args:
        panels: From left to right, or downwards where the page is narrow.
        layout: Of the page.
    """
    columns = min(layout.panels, len(panels))
    rows = math.ceil(len(panels) / columns)
    line = 1.32 * layout.text
    left, top, bottom = _LEFT * layout.text, 3.4 * line, 2.8 * line
    curves = [curve for panel in panels for curve in panel.curves]
    rounds = max(len(curve.values) for curve in curves)
    right = _GAP + 12 + max_text_width((_label(curve, rounds, layout) for curve in curves), layout.text)
    crowd = 1.2 * line * max(len(panel.curves) for panel in panels)
    tall = max(crowd, 0.55 * min(layout.width / columns, 560))
    height = rows * (top + tall + bottom)
    figure, limits = new_figure(layout, height), _axis_limits(panels)
    for index, panel in enumerate(panels):
        x = layout.width / columns * (index % columns) + left
        y = height - (index // columns) * (top + tall + bottom) - top - tall
        width = layout.width / columns - left - right
        axes = figure.add_axes((x / layout.width, y / height, width / layout.width, tall / height))
        _draw_panel(axes, panel, layout, limits)
        _label_curves(axes, panel, layout, limits, spacing=line / tall, beyond=1 + _GAP / width)
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
    if panel.stretches:
        _draw_segments(axes, panel.stretches, rounds, layout)
    else:
        axes.set_xticks(_ticks(rounds))
        axes.set_xlabel("round", fontsize=layout.text, loc="right", labelpad=1)
    for curve in panel.curves:
        _draw_curve(axes, curve, rounds, breaks=len(panel.stretches) or 1)


def _draw_segments(axes: "Axes", stretches: Sequence[str], points: int, layout: Layout) -> None:
    each, room = points / len(stretches), axes.get_position().width * layout.width / len(stretches)
    crowded = max_text_width(stretches, layout.text) > room
    names = [ellipsize(name, layout.text, 2 * room) if crowded else name for name in stretches]
    below = [f"\n{name}" if crowded and place % 2 else name for place, name in enumerate(names)]
    axes.set_xticks([0.5 + each * (place + 0.5) for place in range(len(stretches))], below)
    for place in range(1, len(stretches)):
        axes.axvline(0.5 + each * place, color=RULE, linewidth=1, zorder=0)


def _label_curves(
    axes: "Axes", panel: Panel, layout: Layout, limits: tuple[float, float], *, spacing: float, beyond: float
) -> None:
    low, high, rounds = *limits, max(len(curve.values) for curve in panel.curves)
    heading: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": layout.text}
    edge = -_LEFT * layout.text
    axes.annotate(panel.title, (0, 1), (edge, 2.2 * layout.text), fontweight="bold", **heading)
    axes.annotate(panel.unit, (0, 1), (edge, 0.9 * layout.text), color=QUIET, **heading)
    ends = [low if math.isnan(curve.values[-1]) else curve.values[-1] for curve in panel.curves]
    heights = spread_labels([(end - low) / (high - low) for end in ends], spacing)
    for curve, end, place in zip(panel.curves, ends, heights, strict=True):
        look, reached = _line_style(curve), len(curve.values)
        leader = {"color": look["color"], "linewidth": 0.7, "linestyle": "-" if reached == rounds else ":"}
        axes.annotate(
            "", (reached, end), (beyond, place), textcoords="axes fraction", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "shrinkA": 0, "shrinkB": 0, **leader},
        )  # fmt: skip
        axes.plot(beyond, place, transform=axes.transAxes, clip_on=False, **look)
        axes.annotate(
            _label(curve, rounds, layout), (beyond, place), (7, -0.5), va="center", annotation_clip=False, **heading
        )


def _label(curve: Curve, rounds: int, layout: Layout) -> str:
    reached = len(curve.values)
    room = 0.45 * layout.width / layout.panels
    return ellipsize(curve.name, layout.text, room) + ("" if reached == rounds else f" @{reached}")


def _ticks(rounds: int) -> list[int]:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, rounds) if rounds <= 6 * step)
    return sorted({1, *range(step, rounds + 1, step)})


def _draw_curve(axes: "Axes", curve: Curve, rounds: int, breaks: int = 1) -> None:
    look, each = _line_style(curve), len(curve.values) // breaks
    for start in range(0, len(curve.values), each):
        part = slice(start, start + each)
        steps, low, high = range(start + 1, start + each + 1), curve.low[part], curve.high[part]
        if any(least < most for least, most in zip(low, high, strict=True)):
            axes.fill_between(steps, low, high, color=look["color"], alpha=0.15, linewidth=0)
        axes.plot(steps, curve.values[part], markevery=max(1, rounds // 10), clip_on=False, **look)


def _line_style(curve: Curve) -> dict[str, Any]:
    method = curve.family.partition(",")[0]
    color, place = _PALETTE.get(method, INK), list(_PALETTE).index(method) if method in _PALETTE else -1
    return {
        "color": color,
        "linestyle": _DASHES.get(curve.selection, "solid"),
        "linewidth": 2,
        "marker": _MARKERS[place],
        "markersize": 6,
        "markerfacecolor": color if curve.selection else PAPER,
        "markeredgecolor": color,
    }


def _axis_limits(panels: Sequence[Panel]) -> tuple[float, float]:
    if any(panel.whole for panel in panels):
        return 0.0, 100.0
    shown = [value for panel in panels for curve in panel.curves for value in (*curve.low, *curve.high)]
    finite = [value for value in shown if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    padding = max(0.06 * (high - low), (_MIN_SPAN - (high - low)) / 2)
    return max(0.0, low - padding), high + padding


def spread_labels(places: Sequence[float], spacing: float) -> list[float]:
    """Move heights in 0..1 apart by at least so much, as little as possible up or down, in their order.

    Args:
        places: Where they would like to be.
        spacing: The least distance between two.

    Examples:
        >>> [round(place, 3) for place in spread_labels([0.5, 0.52, 0.9], 0.1)]
        [0.46, 0.56, 0.9]
    """
    order = sorted(range(len(places)), key=lambda index: places[index])
    blocks: list[tuple[float, list[int]]] = []
    for index in order:
        middle, members = places[index], [index]
        while blocks and middle - spacing * len(members) / 2 < blocks[-1][0] + spacing * len(blocks[-1][1]) / 2:
            members = blocks.pop()[1] + members
            middle = _clamp_center(sum(places[member] for member in members) / len(members), spacing * (len(members) - 1) / 2)
        blocks.append((middle, members))
    moved = dict.fromkeys(order, 0.0)
    for middle, members in blocks:
        for place, member in enumerate(members):
            moved[member] = middle + spacing * (place - (len(members) - 1) / 2)
    return [moved[index] for index in range(len(places))]


def _clamp_center(middle: float, reach: float) -> float:
    return min(max(middle, reach), max(1 - reach, reach))
