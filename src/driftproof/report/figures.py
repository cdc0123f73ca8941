"""The figures: one function each, from a data frame to a chart of Vega-Lite.

A chart is interactive in the page (hover, toggle in the legend, shift and wheel to zoom, drag to pan) and static in
documents: `save` writes the same chart as SVG or PNG. `width` is in pixels, or "container" for that of the page. Charts
to put side by side are made with `is_static`. Colors are readable on light and dark pages, and by color-blind readers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from driftproof.bench.libraries import alt, pl
from driftproof.errors import ConfigurationError
from driftproof.files import atomic_write
from driftproof.optional import require

__all__ = ["CONFIG", "PALETTE", "heatmap", "histogram", "line_chart", "line_styles", "save", "to_spec"]

Width = int | Literal["container"]

PALETTE = ("#0b7bc0", "#d55e00", "#0a8f6a", "#b8589b", "#8a7a1f", "#7a6ff0", "#c04a4a", "#2f9aa8", "#8c6d5a", "#7d828a")
"""Okabe and Ito's hues, moved to lightnesses that stand out from white and from black."""

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

_DASHES = ([1, 0], [6, 4], [2, 3], [10, 3, 2, 3])
_ROW = 24
_CLICKS: dict[str, Any] = {"bind": "legend", "toggle": "true"}
_WHEEL = "wheel![event.shiftKey]"
_INTEGERS = "datum.value % 1 ? '' : format(datum.value, 'd')"
_ROOM = "(containerSize()[0] > 0 ? containerSize()[0] : width)"  # of the page; in documents, of the chart


def line_chart(
    frame: pl.DataFrame,
    *,
    x: str = "round",
    y: str = "value",
    x_title: str = "round",
    y_title: str = "error, %",
    title: str = "",
    baseline: float | None = None,
    known: Sequence[str] | None = None,
    emphasis: str | None = None,
    is_static: bool = False,
    width: Width = 640,
    height: int = 300,
) -> alt.LayerChart:
    """Draw one line per label, that of `emphasis` thicker, and a horizontal rule at the baseline.

    The frame has columns `label` (in the order of the legend), `x` (numbers or names) and `y`. Optional: `low` and
    `high` for a band, and `event`, a text where something happened, marked with a cross. Hovering shows all columns.
    `known` are all labels of a report, so that each has one color in all figures.
    """
    if "event" in frame.columns:
        has_events = frame["event"].is_not_null().any()
        frame = frame.with_columns(pl.col("event").fill_null("–")) if has_events else frame.drop("event")
    labels = frame["label"].unique(maintain_order=True).to_list()
    styles, is_number = line_styles(labels if known is None else known), frame[x].dtype.is_numeric()
    colors, dashes = ([styles[label][part] for label in labels] for part in (0, 1))
    shown = alt.selection_point(fields=["label"], **_CLICKS)
    columns = alt.ExprRef(f"max(1, floor({_ROOM} / {45 + 7 * max(map(len, labels))}))")
    shape: dict[str, Any] = {"columns": 3 if is_static else columns, "symbolType": "stroke", "symbolSize": 300}
    legend = alt.Legend(title=None, symbolLimit=0, **shape)
    ticks: dict[str, Any] = {"labelExpr": _INTEGERS} if is_number else {"labelAngle": -35}
    axis = alt.Axis(title=x_title, grid=False, ticks=False, labelOverlap=True, **ticks)
    scale = alt.Scale(zero=False, nice=False) if is_number else alt.Scale()
    base = alt.Chart(_round_numbers(frame)).encode(
        x=alt.X(x, type="quantitative" if is_number else "nominal", sort=None, axis=axis, scale=scale),
        color=alt.Color("label:N", sort=None, scale=alt.Scale(domain=labels, range=colors), legend=legend),
        opacity=alt.value(1) if is_static else alt.condition(shown, alt.value(1), alt.value(0.07)),
    )
    vertical = alt.Y(y, type="quantitative", title=y_title, scale=alt.Scale(zero=False))
    dash = alt.StrokeDash("label:N", sort=None, scale=alt.Scale(domain=labels, range=dashes), legend=legend)
    weight = alt.condition(alt.datum.label == emphasis, alt.value(4), alt.value(2))
    tips = _tooltips(frame, ".2f")
    layers: list[Any] = [base.mark_line().encode(y=vertical, strokeDash=dash, strokeWidth=weight)]
    if {"low", "high"} <= set(frame.columns) and (frame["high"] > frame["low"]).any():
        layers.append(base.mark_area(fillOpacity=0.15).encode(y=alt.Y("low:Q"), y2="high:Q"))
    if baseline is not None:
        rule = alt.Chart(pl.DataFrame({"at": [baseline]})).mark_rule(color="currentColor", opacity=0.5)
        layers.append(rule.encode(y=alt.Y("at:Q")))
    if "event" in frame.columns:
        cross = base.transform_filter("datum.event != '–'").mark_point(shape="cross", angle=45, size=110, filled=True)
        layers.append(cross.encode(y=vertical, tooltip=tips))
    if not is_static:
        near = alt.selection_point(fields=["label", x], on="pointerover", nearest=True, empty=False, clear="pointerout")
        zoom = alt.selection_interval(bind="scales", zoom=_WHEEL, encodings=["x", "y"] if is_number else ["y"])
        visible = alt.condition(near, alt.value(1), alt.value(0))
        dots = base.mark_point(filled=True, size=70).encode(y=vertical, tooltip=tips, opacity=visible)
        # The legend obeys the selection of the first layer.
        layers = [layers[0].add_params(shown, zoom), *layers[1:], dots.add_params(near)]
    return alt.LayerChart(layer=layers, title=title, width=width, height=height)


def heatmap(
    frame: pl.DataFrame,
    *,
    x: str = "domain",
    y: str = "label",
    digits: int = 1,
    legend: str = "error, %",
    title: str = "",
    width: Width = 640,
) -> alt.LayerChart:
    """Draw column `value` for each `x` and `y`, in the order of the rows; numbers are printed where there is room."""
    low, high = (float(frame.select(pick).item() or 0) for pick in (pl.col("value").min(), pl.col("value").max()))
    base = alt.Chart(_round_numbers(frame)).encode(
        x=alt.X(x, type="nominal", sort=None, title=None, axis=alt.Axis(labelAngle=-40)),
        y=alt.Y(y, type="nominal", sort=None, title=None, axis=alt.Axis(labelLimit=220)),
        tooltip=_tooltips(frame, f".{digits}f"),
    )
    key = alt.Legend(title=legend, orient="top", gradientLength=160)
    fill = alt.Color("value:Q", scale=alt.Scale(scheme="cividis", domain=[low, high]), legend=key)
    ink = alt.condition(alt.datum.value < (low + high) / 2, alt.value("white"), alt.value("black"))
    room = alt.ExprRef(f"width / {frame[x].n_unique()} > {12 + 7 * (digits + 2)} ? 1 : 0")
    numbers = base.mark_text(fontSize=11, opacity=room).encode(alt.Text("value:Q", format=f".{digits}f"), color=ink)
    layers = [base.mark_rect().encode(color=fill), numbers]
    return alt.LayerChart(layer=layers, title=title, width=width, height=_ROW * frame[y].n_unique())


def histogram(
    frame: pl.DataFrame, *, title: str = "", is_static: bool = False, width: Width = 640, height: int = 220
) -> alt.Chart:
    """Draw the distribution of a score for several kinds of samples.

    The frame has columns `score` (one), `kind`, `low` and `high` (edges of a bin), and `share`, in percent of a kind.
    """
    shown = alt.selection_point(fields=["kind"], **_CLICKS)
    kinds = alt.Scale(domain=frame["kind"].unique(maintain_order=True).to_list(), range=list(PALETTE))
    axis = alt.Axis(title=str(frame["score"][0]).replace("_", " "), grid=False, format="~g")
    bars: alt.Chart = alt.Chart(_round_numbers(frame), title=title, width=width, height=height)
    chart: alt.Chart = bars.mark_bar(fillOpacity=0.4, binSpacing=0).encode(
        x=alt.X("low:Q", bin="binned", axis=axis),
        x2="high:Q",
        y=alt.Y("share:Q", title="% of each kind", stack=None),
        color=alt.Color("kind:N", sort=None, scale=kinds, legend=alt.Legend(title=None)),
        opacity=alt.value(1) if is_static else alt.condition(shown, alt.value(1), alt.value(0)),
        tooltip=_tooltips(frame, "~g"),
    )
    return chart if is_static else chart.add_params(shown)


def to_spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return a chart as Vega-Lite, with its data; the page adds `CONFIG`."""
    with alt.data_transformers.enable("default", max_rows=None):
        spec: dict[str, Any] = chart.to_dict(validate=False)
    return {key: value for key, value in spec.items() if key != "config"}


def save(chart: alt.TopLevelMixin, path: Path) -> None:
    """Write a chart on white, as SVG or PNG by the suffix of the path."""
    convert = require("vl_convert", "Writing figures", "'driftproof[report]'")
    spec = {**to_spec(chart), "config": {**CONFIG, "background": "white"}}
    if path.suffix not in (".svg", ".png"):
        raise ConfigurationError(f"Expected a path that ends with .svg or .png, but got {path}.")
    with atomic_write(path) as unfinished:
        if path.suffix == ".svg":
            unfinished.write_text(convert.vegalite_to_svg(spec), encoding="utf-8")
        else:
            unfinished.write_bytes(convert.vegalite_to_png(spec, scale=2))


def _tooltips(frame: pl.DataFrame, number: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(name, format=number if frame[name].dtype.is_float() else "") for name in frame.columns]


def _round_numbers(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.selectors.float().round(3 if "share" in frame.columns else 2))


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
