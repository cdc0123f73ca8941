"""The figures: one function each, from a data frame to a chart of Vega-Lite.

A chart is interactive in the page (hover, toggle in the legend, shift and wheel to zoom, drag to pan) and static in
documents: `save` writes the same chart as SVG or PNG. `width` is in pixels, or "container" for that of the page.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from driftproof.errors import ConfigurationError
from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.report.theme import CONFIG, PALETTE, line_styles

if TYPE_CHECKING:
    import altair as alt
    import polars as pl
else:
    alt, pl = (require(name, "Drawing figures", "'driftproof[report]'") for name in ("altair", "polars"))

__all__ = ["heatmap", "histogram", "line_chart", "save", "to_spec"]

Width = int | Literal["container"]
_ROW = 24
_CLICKS: dict[str, Any] = {"bind": "legend", "toggle": "true"}
_WHEEL = "wheel![event.shiftKey]"
_INTEGERS = "datum.value % 1 ? '' : format(datum.value, 'd')"
_ROOM = "(containerSize()[0] > 0 ? containerSize()[0] : width)"  # of the page; in documents, of the chart


def line_chart(
    frame: "pl.DataFrame",
    *,
    x: str = "round",
    y: str = "value",
    x_title: str = "round",
    y_title: str = "error, %",
    title: str = "",
    baseline: float | None = None,
    known: Sequence[str] | None = None,
    emphasis: str | None = None,
    width: Width = 640,
    height: int = 300,
) -> "alt.LayerChart":
    """Draw one line per label.

    Args:
        frame: Columns `label` (in the order of the legend), `x` and `y`. Optional: `low` and `high` for a band, and
            `event`, a text where something happened, marked with a cross. Hovering shows all columns.
        x: Column of the horizontal axis, numbers or names.
        y: Column of the vertical axis.
        x_title: Title of the horizontal axis.
        y_title: Title of the vertical axis.
        title: Title of the figure.
        baseline: Where to draw a horizontal rule.
        known: All labels of a report, so that each has one color in all figures.
        emphasis: Label of the line to draw thicker.
        width: Of the plot.
        height: Of the plot, in pixels.
    """
    labels = frame["label"].unique(maintain_order=True).to_list()
    styles, is_number = line_styles(labels if known is None else known), frame[x].dtype.is_numeric()
    colors, dashes = ([styles[label][part] for label in labels] for part in (0, 1))
    shown = alt.selection_point(fields=["label"], **_CLICKS)
    near = alt.selection_point(fields=["label", x], on="pointerover", nearest=True, empty=False, clear="pointerout")
    zoom = alt.selection_interval(bind="scales", zoom=_WHEEL, encodings=["x", "y"] if is_number else ["y"])
    columns = alt.ExprRef(f"max(1, floor({_ROOM} / {45 + 7 * max(map(len, labels))}))")
    legend = alt.Legend(title=None, columns=columns, symbolType="stroke", symbolSize=300, symbolLimit=0)
    ticks: dict[str, Any] = {"labelExpr": _INTEGERS} if is_number else {"labelAngle": -35}
    axis = alt.Axis(title=x_title, grid=False, ticks=False, labelOverlap=True, **ticks)
    scale = alt.Scale(zero=False, nice=False) if is_number else alt.Scale()
    base = alt.Chart(_round_numbers(frame)).encode(
        x=alt.X(x, type="quantitative" if is_number else "nominal", sort=None, axis=axis, scale=scale),
        color=alt.Color("label:N", sort=None, scale=alt.Scale(domain=labels, range=colors), legend=legend),
        opacity=alt.condition(shown, alt.value(1), alt.value(0.07)),
    )
    vertical = alt.Y(y, type="quantitative", title=y_title, scale=alt.Scale(zero=False))
    dash = alt.StrokeDash("label:N", sort=None, scale=alt.Scale(domain=labels, range=dashes), legend=legend)
    weight = alt.condition(alt.datum.label == emphasis, alt.value(4), alt.value(2))
    tips = _tooltips(frame, ".2f")
    lines = base.mark_line().encode(y=vertical, strokeDash=dash, strokeWidth=weight)
    layers: list[Any] = [lines.add_params(shown, zoom)]  # first: the legend obeys the selection of the first layer
    if {"low", "high"} <= set(frame.columns) and (frame["high"] > frame["low"]).any():
        layers.append(base.mark_area(fillOpacity=0.15).encode(y=alt.Y("low:Q"), y2="high:Q"))
    if baseline is not None:
        rule = alt.Chart(pl.DataFrame({"at": [baseline]})).mark_rule(color="currentColor", opacity=0.5)
        layers.append(rule.encode(y=alt.Y("at:Q")))
    if "event" in frame.columns and frame["event"].is_not_null().any():
        events = base.transform_filter("datum.event != null")
        layers.append(
            events.mark_point(shape="cross", angle=45, size=110, filled=True).encode(y=vertical, tooltip=tips)
        )
    visible = alt.condition(near, alt.value(1), alt.value(0))
    dots = base.mark_point(filled=True, size=70).encode(y=vertical, tooltip=tips, opacity=visible)
    return alt.LayerChart(layer=[*layers, dots.add_params(near)], title=title, width=width, height=height)


def heatmap(
    frame: "pl.DataFrame",
    *,
    x: str = "domain",
    y: str = "label",
    digits: int = 1,
    legend: str = "error, %",
    title: str = "",
    width: Width = 640,
) -> "alt.LayerChart":
    """Draw a number per row and column; numbers are printed where there is room.

    Args:
        frame: Columns `x`, `y` and `value`, in the order to show.
        x: Column of the horizontal axis.
        y: Column of the vertical axis.
        digits: Of the numbers, after the decimal point.
        legend: What the numbers are.
        title: Title of the figure.
        width: Of the plot.
    """
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


def histogram(frame: "pl.DataFrame", *, title: str = "", width: Width = 640, height: int = 220) -> "alt.Chart":
    """Draw the distribution of a score for several kinds of samples.

    Args:
        frame: Columns `score` (one), `kind`, `low` and `high` (edges of a bin), and `share`, in percent of a kind.
        title: Title of the figure.
        width: Of the plot.
        height: Of the plot, in pixels.
    """
    shown = alt.selection_point(fields=["kind"], **_CLICKS)
    kinds = alt.Scale(domain=frame["kind"].unique(maintain_order=True).to_list(), range=list(PALETTE))
    axis = alt.Axis(title=str(frame["score"][0]).replace("_", " "), grid=False, format="~g")
    bars: alt.Chart = alt.Chart(_round_numbers(frame), title=title, width=width, height=height)
    chart: alt.Chart = bars.mark_bar(fillOpacity=0.4, binSpacing=0).add_params(shown).encode(
        x=alt.X("low:Q", bin="binned", axis=axis),
        x2="high:Q",
        y=alt.Y("share:Q", title="% of each kind", stack=None),
        color=alt.Color("kind:N", sort=None, scale=kinds, legend=alt.Legend(title=None)),
        opacity=alt.condition(shown, alt.value(1), alt.value(0)),
        tooltip=_tooltips(frame, "~g"),
    )  # fmt: skip
    return chart


def to_spec(chart: "alt.TopLevelMixin") -> dict[str, Any]:
    """Return a chart as Vega-Lite, with its data; the page adds `CONFIG`."""
    with alt.data_transformers.enable("default", max_rows=None):
        spec: dict[str, Any] = chart.to_dict(validate=False)
    return {key: value for key, value in spec.items() if key != "config"}


def save(chart: "alt.TopLevelMixin", path: Path) -> None:
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


def _tooltips(frame: "pl.DataFrame", number: str) -> "list[alt.Tooltip]":
    return [alt.Tooltip(name, format=number if frame[name].dtype.is_float() else "") for name in frame.columns]


def _round_numbers(frame: "pl.DataFrame") -> "pl.DataFrame":
    return frame.with_columns(pl.selectors.float().round(3 if "share" in frame.columns else 2))
