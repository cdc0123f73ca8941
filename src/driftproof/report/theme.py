"""Colors and lines of the figures: readable on light and dark pages, and by color-blind readers."""

from collections.abc import Sequence
from typing import Any

__all__ = ["CONFIG", "PALETTE", "PAPERS", "line_styles"]

PALETTE = ("#0b7bc0", "#d55e00", "#0a8f6a", "#b8589b", "#8a7a1f", "#7a6ff0", "#c04a4a", "#2f9aa8", "#8c6d5a", "#7d828a")
"""Okabe and Ito's hues, moved to lightnesses that stand out from white and from black."""

PAPERS = ("#fdfdfc", "#15181b")
"""Backgrounds of the page, light and dark."""

_DASHES = ([1, 0], [6, 4], [2, 3], [10, 3, 2, 3])
_INK = "currentColor"  # of the page: axes and labels follow its mode

CONFIG: dict[str, Any] = {
    "background": None,
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, 'Liberation Sans', sans-serif",
    "view": {"stroke": None},
    "title": {"anchor": "start", "color": _INK, "fontSize": 14, "fontWeight": 600},
    "axis": {"labelColor": _INK, "titleColor": _INK, "gridColor": _INK, "gridOpacity": 0.15, "tickOpacity": 0.3,
             "tickColor": _INK, "domain": False, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
             "labelOpacity": 0.85},
    "legend": {"labelColor": _INK, "titleColor": _INK, "labelFontSize": 12, "labelLimit": 300, "orient": "bottom"},
}  # fmt: skip
"""Vega-Lite configuration of every figure."""


def line_styles(labels: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
    """Return color and dashes of each label.

    `tent` and `tent+crowd` share a color; the plain method is dashed. Where colors repeat, dashes differ as well.

    Examples:
        >>> styles = line_styles(["source", "tent", "tent+crowd"])
        >>> styles["tent"][0] == styles["tent+crowd"][0] != styles["source"][0]
        True
        >>> styles["tent"][1], styles["tent+crowd"][1]
        ([6, 4], [1, 0])
    """
    by_base: dict[str, list[str]] = {}
    for label in labels:
        method, comma, variant = label.partition(",")
        by_base.setdefault(method.partition("+")[0] + comma + variant, []).append(label)
    styles = {}
    for index, alike in enumerate(by_base.values()):
        # The paper's selection is solid, the plain method dashed, others are dotted.
        ordered = sorted(alike, key=lambda label: ("+crowd" not in label, "+" in label))
        start = ("+crowd" not in ordered[0]) + 2 * (index // len(PALETTE))
        for turn, label in enumerate(ordered, start):
            styles[label] = PALETTE[index % len(PALETTE)], _DASHES[turn % len(_DASHES)]
    return styles
