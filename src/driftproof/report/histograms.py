"""Draw histograms of a score for several kinds of samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from driftproof.report.responsive import QUIET, RULE, Layout, import_matplotlib, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Histogram", "draw_histograms"]

_COLORS = ("#0072B2", "#D55E00", "#8F7EE5", "#009E73")


@dataclass(frozen=True)
class Histogram:
    """The content of one pair of axes.

    Attributes:
        title: Shown above the axes.
        edges: The bin edges.
        counts: For each kind of samples, the number in each bin.
        note: Shown below the title.
    """

    title: str
    edges: Sequence[float]
    counts: Mapping[str, Sequence[int]]
    note: str = ""


def draw_histograms(panels: Sequence[Histogram], layout: Layout) -> "Figure":
    """Draw histograms in columns, or in one column on narrow pages; each kind adds up to 100 percent.

    Args:
        panels: What to draw; kinds without samples are left out.
        layout: Of the page.
    """
    columns = min(layout.panels, len(panels))
    rows = -(-len(panels) // columns)
    line = 1.32 * layout.text
    left, right, top, bottom = 3.0 * layout.text, 1.6 * layout.text, 4.8 * line, 2.0 * line
    panel_width = layout.width / columns
    tall = 0.5 * panel_width
    height = rows * (top + tall + bottom)
    figure = new_figure(layout, height)
    for index, panel in enumerate(panels):
        x, y = panel_width * (index % columns) + left, height - (index // columns + 1) * (top + tall + bottom) + bottom
        bounds = (x / layout.width, y / height, (panel_width - left - right) / layout.width, tall / height)
        _draw_panel(figure.add_axes(bounds), panel, layout)
    return figure


def _draw_panel(axes: "Axes", panel: Histogram, layout: Layout) -> None:
    text = layout.text
    for (kind, counts), color in zip(panel.counts.items(), _COLORS, strict=False):
        if total := sum(counts):
            shares = [100 * count / total for count in counts]
            axes.stairs(shares, panel.edges, color=color, linewidth=2, label=kind)
            axes.stairs(shares, panel.edges, color=color, alpha=0.18, fill=True)
    axes.set_xlim(panel.edges[0], panel.edges[-1])
    axes.xaxis.set_major_locator(import_matplotlib("ticker").MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(import_matplotlib("ticker").MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    axes.grid(axis="y", color=RULE, linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=text, length=0, pad=5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(
        loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(panel.counts), frameon=False, fontsize=text,
        labelcolor="linecolor", handlelength=1, borderpad=0, columnspacing=1,
    )  # fmt: skip
    heading: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": text}
    axes.annotate(panel.title, (0, 1), (-2.6 * text, 3.8 * text), fontweight="bold", **heading)
    axes.annotate(f"% of each kind; {panel.note}", (0, 1), (-2.6 * text, 2.4 * text), color=QUIET, **heading)
