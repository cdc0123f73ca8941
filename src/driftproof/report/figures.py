"""Build the figures of a report from its rows."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from driftproof.bench import Results
from driftproof.bench.pixels import IOU_CURVE
from driftproof.report.curves import Curve, Panel, draw_curves
from driftproof.report.health import first_unhealthy_round
from driftproof.report.heatmap import HeatmapData, draw_heatmap
from driftproof.report.numbers import format_number
from driftproof.report.responsive import ResponsiveFigure, make_figure
from driftproof.report.series import MethodSeries, StreamGroup, distinguishing_fields

__all__ = ["domain_figures", "group_by_figure", "round_figures", "selected_share_figures", "within_domain_figures"]

_SHARE_METRICS = {"selected_known": "known", "selected_unknown": "unknown"}


def round_figures(results: Results, streams: Sequence[StreamGroup]) -> list[ResponsiveFigure]:
    """Curves over rounds: one figure per image set, one panel per setting."""
    figures: list[ResponsiveFigure] = []
    for group in group_by_figure(results, streams):
        metric = group[0].metric
        panels = [Panel(stream.setting, metric.unit, _stream_curves(results, stream, metric.key)) for stream in group]
        averaged = f"{_describe_domains(group[0])}{_describe_seeds(group)}"
        caption = f"{_capitalize(metric.label)} in each round, mean over {averaged}."
        figures.append(_make_curve_figure(f"rounds-{len(figures) + 1}", _title(group[0], streams), caption, panels))
    return figures


def within_domain_figures(results: Results, streams: Sequence[StreamGroup]) -> list[ResponsiveFigure]:
    """Running mean IoU within each domain of the last round, for streams of scenes."""
    figures: list[ResponsiveFigure] = []
    for stream in (stream for stream in streams if stream.is_segmentation):
        last = stream.rounds(results)
        curves = []
        for series in stream.series:
            values = series.within_domain(results, IOU_CURVE)
            name = _name_with_round(series, results, last)
            curves.append(Curve(name, series.base_name, series.selection, values, values, values))
        known = [curve for curve in curves if any(map(math.isfinite, curve.values))]
        if known:
            segments = [domain.replace("_", " ") for domain in stream.spec.domains]
            panel = Panel(stream.setting, stream.metric.unit, known, segments=segments)
            label = _capitalize(stream.metric.label)
            caption = f"{label} over the frames of each domain seen so far, in round {last}."
            figures.append(_make_curve_figure(f"course-{len(figures) + 1}", _title(stream, streams), caption, [panel]))
    return figures


def selected_share_figures(results: Results, streams: Sequence[StreamGroup]) -> list[ResponsiveFigure]:
    """Share of known and of unknown images or pixels that selecting methods learned from."""
    figures: list[ResponsiveFigure] = []
    for stream in streams:
        if stream.rounds(results) > 1 and (panels := list(_share_panels(results, stream))):
            title = f"{_title(stream, streams)}, {stream.setting}"
            caption = f"Share of the {_sample_noun(stream)} that a step learned from, in each round."
            figures.append(_make_curve_figure(f"selected-{len(figures) + 1}", title, caption, panels))
    return figures


def domain_figures(results: Results, streams: Sequence[StreamGroup]) -> list[ResponsiveFigure]:
    """Heatmap of each method in each domain of the last round, with the mean."""
    figures: list[ResponsiveFigure] = []
    for stream in (stream for stream in streams if len(stream.spec.domains) > 1):
        metric, last = stream.metric, stream.rounds(results)
        values = [series.per_domain(results, metric.key) for series in stream.series]
        names = [_name_with_round(series, results, last) for series in stream.series]
        domains = [domain.replace("_", " ") for domain in stream.spec.domains]
        heatmap = HeatmapData(names, [*domains, "mean"], [[*row, statistics.fmean(row)] for row in values])
        title = f"{_title(stream, streams)}, {stream.setting}"
        early = ", or of the round after @" if any("@" in name for name in names) else ""
        caption = f"{_capitalize(metric.label)} in percent for each domain of round {last}{early}."
        ranges = "; ".join(f"{name} {_describe_range(row)}" for name, row in zip(names, values, strict=True))
        name = f"domains-{len(figures) + 1}"
        figures.append(make_figure(name, title, caption, ranges, partial(draw_heatmap, heatmap)))
    return figures


def _share_panels(results: Results, stream: StreamGroup) -> Iterator[Panel]:
    for metric, label in _SHARE_METRICS.items():
        curves = _stream_curves(results, stream, metric, scale=100)
        selecting = [curve for curve in curves if any(0 < value < 100 for value in curve.values)]
        if selecting:
            kind = label if stream.spec.unknown or stream.is_segmentation else "all"
            yield Panel(f"{kind} {_sample_noun(stream)}", "learned from, %", selecting, full_range=True)


def _sample_noun(stream: StreamGroup) -> str:
    return "pixels" if stream.is_segmentation else "images"


def _capitalize(text: str) -> str:
    """Capitalize the first letter and keep all others."""
    return text[:1].upper() + text[1:]


def _make_curve_figure(name: str, title: str, caption: str, panels: Sequence[Panel]) -> ResponsiveFigure:
    if any(curve.unhealthy_from for panel in panels for curve in panel.curves):
        caption += " A cross marks the first round in which adaptation was not healthy."
    descriptions = (f"{panel.title}: {', '.join(map(_describe_curve, panel.curves))}" for panel in panels)
    return make_figure(name, title, caption, "; ".join(descriptions), partial(draw_curves, panels))


def group_by_figure(results: Results, streams: Sequence[StreamGroup]) -> list[list[StreamGroup]]:
    """Group streams that are panels of one figure; streams of a single round have no curve."""
    groups: dict[object, list[StreamGroup]] = {}
    for stream in streams:
        if stream.rounds(results) > 1:
            groups.setdefault(replace(stream.spec, unknown=None), []).append(stream)
    return list(groups.values())


def _stream_curves(results: Results, stream: StreamGroup, metric: str, scale: float = 1.0) -> list[Curve]:
    last = stream.rounds(results)
    return [
        _make_curve(results, series, metric, scale, last if series.is_stateless(results) else 0)
        for series in stream.series
    ]


def _make_curve(results: Results, series: MethodSeries, metric: str, scale: float, min_rounds: int) -> Curve:
    """The curve of a series, extended to `min_rounds` with its last value."""
    seeds = list(zip(*series.by_seed(results, metric), strict=True))
    seeds += seeds[-1:] * (min_rounds - len(seeds))
    means, low, high = ([scale * reduce(values) for values in seeds] for reduce in (statistics.fmean, min, max))
    first = first_unhealthy_round(results, series)
    shown = None if first is None or first > len(means) else first  # the last round may be incomplete
    return Curve(series.name, series.base_name, series.selection, means, low, high, shown)


def _describe_curve(curve: Curve) -> str:
    unhealthy = f" (not healthy from round {curve.unhealthy_from})" if curve.unhealthy_from else ""
    return f"{curve.name} from {format_number(curve.values[0])} to {format_number(curve.values[-1])}{unhealthy}"


def _describe_range(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return f"between {format_number(min(finite))} and {format_number(max(finite))}" if finite else "not measured"


def _name_with_round(series: MethodSeries, results: Results, last: int) -> str:
    rounds = series.rounds(results)
    return series.name if rounds == last or series.is_stateless(results) else f"{series.name} @{rounds}"


def _title(stream: StreamGroup, streams: Sequence[StreamGroup]) -> str:
    """Image set, network, and the fields that distinguish the stream from others with the same name."""
    spec = stream.spec
    return ", ".join([spec.images, spec.model, *distinguishing_fields(spec, [other.spec for other in streams])])


def _describe_domains(stream: StreamGroup) -> str:
    count = len(stream.spec.domains)
    return f"{count} domains" if count > 1 else stream.spec.domains[0]


def _describe_seeds(streams: Sequence[StreamGroup]) -> str:
    most = max(len(series.specs) for stream in streams for series in stream.series)
    return f" and up to {most} seeds; bands span the minimum and maximum over seeds" if most > 1 else ""
