"""The figures of a report, from its rows."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from driftproof.bench import Results
from driftproof.bench.pixels import IOU_CURVE
from driftproof.report.curves import Curve, Panel, draw_curves
from driftproof.report.heatmap import HeatmapData, draw_heatmap
from driftproof.report.numbers import format_number
from driftproof.report.responsive import ResponsiveFigure, make_figure
from driftproof.report.series import MethodSeries, StreamGroup, distinguishing_fields

__all__ = ["domain_figures", "group_by_figure", "round_figures", "selected_share_figures", "within_domain_figures"]

_SHARE_METRICS = {"selected_known": "known", "selected_unknown": "unknown"}


def round_figures(results: Results, streams: Sequence[StreamGroup]) -> list[ResponsiveFigure]:
    """How each method fared over the rounds: a figure for each image set, a panel for each setting."""
    drawings: list[ResponsiveFigure] = []
    for together in group_by_figure(results, streams):
        quantity = together[0].quantity
        panels = [
            Panel(stream.setting, quantity.unit, _stream_curves(results, stream, quantity.measure)) for stream in together
        ]
        caption = f"{_capitalize(quantity.words)} in each round, mean over {_describe_domains(together[0])}{_describe_seeds(together)}."
        drawings.append(_make_curve_figure(f"rounds-{len(drawings) + 1}", _title(together[0], streams), caption, panels))
    return drawings


def within_domain_figures(results: Results, streams: Sequence[StreamGroup]) -> list[ResponsiveFigure]:
    """How each method fared on scenes while its last round went on."""
    drawings: list[ResponsiveFigure] = []
    for stream in (stream for stream in streams if stream.of_pixels):
        last = stream.rounds(results)
        curves = []
        for line in stream.lines:
            values = line.course(results, IOU_CURVE)
            curves.append(Curve(_name_with_round(line, results, last), line.base, line.selection, values, values, values))
        known = [curve for curve in curves if any(map(math.isfinite, curve.values))]
        if known:
            stretches = [domain.replace("_", " ") for domain in stream.spec.domains]
            panel = Panel(stream.setting, stream.quantity.unit, known, stretches=stretches)
            caption = f"{_capitalize(stream.quantity.words)} over what had come of each domain by then, in round {last}."
            drawings.append(_make_curve_figure(f"course-{len(drawings) + 1}", _title(stream, streams), caption, [panel]))
    return drawings


def selected_share_figures(results: Results, streams: Sequence[StreamGroup]) -> list[ResponsiveFigure]:
    """Which share of the images or pixels the selecting methods learned from; known and unknown ones apart."""
    drawings: list[ResponsiveFigure] = []
    for stream in streams:
        if stream.rounds(results) > 1 and (panels := list(_share_panels(results, stream))):
            title = f"{_title(stream, streams)}, {stream.setting}"
            caption = f"Share of the {_sample_noun(stream)} that a step learned from, in each round."
            drawings.append(_make_curve_figure(f"selected-{len(drawings) + 1}", title, caption, panels))
    return drawings


def domain_figures(results: Results, streams: Sequence[StreamGroup]) -> list[ResponsiveFigure]:
    """How each method fared in each domain of the last round, and on average."""
    drawings: list[ResponsiveFigure] = []
    for stream in (stream for stream in streams if len(stream.spec.domains) > 1):
        quantity, last = stream.quantity, stream.rounds(results)
        values = [line.per_domain(results, quantity.measure) for line in stream.lines]
        names = [_name_with_round(line, results, last) for line in stream.lines]
        domains = [domain.replace("_", " ") for domain in stream.spec.domains]
        grid = HeatmapData(names, [*domains, "mean"], [[*row, statistics.fmean(row)] for row in values])
        title = f"{_title(stream, streams)}, {stream.setting}"
        marked = ", or of the round after @" if any("@" in name for name in names) else ""
        caption = f"{_capitalize(quantity.words)} in percent for each domain of round {last}{marked}."
        rows = "; ".join(f"{name} {_describe_range(row)}" for name, row in zip(names, values, strict=True))
        name = f"domains-{len(drawings) + 1}"
        drawings.append(make_figure(name, title, caption, rows, partial(draw_heatmap, grid)))
    return drawings


def _share_panels(results: Results, stream: StreamGroup) -> Iterator[Panel]:
    for measure, words in _SHARE_METRICS.items():
        curves = _stream_curves(results, stream, measure, scale=100)
        selecting = [curve for curve in curves if any(0 < value < 100 for value in curve.values)]
        if selecting:
            which = words if stream.spec.unknown or stream.of_pixels else "all"
            yield Panel(f"{which} {_sample_noun(stream)}", "learned from, %", selecting, whole=True)


def _sample_noun(stream: StreamGroup) -> str:
    return "pixels" if stream.of_pixels else "images"


def _capitalize(words: str) -> str:
    """With a capital at the beginning, and those in between left alone."""
    return words[:1].upper() + words[1:]


def _make_curve_figure(name: str, title: str, caption: str, panels: Sequence[Panel]) -> ResponsiveFigure:
    told = (f"{panel.title}: {', '.join(map(_describe_curve, panel.curves))}" for panel in panels)
    return make_figure(name, title, caption, "; ".join(told), partial(draw_curves, panels))


def group_by_figure(results: Results, streams: Sequence[StreamGroup]) -> list[list[StreamGroup]]:
    """The streams that are panels of one figure; of a single round there is nothing to draw."""
    groups: dict[object, list[StreamGroup]] = {}
    for stream in streams:
        if stream.rounds(results) > 1:
            groups.setdefault(replace(stream.spec, unknown=None), []).append(stream)
    return list(groups.values())


def _stream_curves(results: Results, stream: StreamGroup, measure: str, scale: float = 1.0) -> list[Curve]:
    last = stream.rounds(results)
    return [_make_curve(results, line, measure, scale, last if line.steady(results) else 0) for line in stream.lines]


def _make_curve(results: Results, line: MethodSeries, measure: str, scale: float, least: int) -> Curve:
    """A line's course; drawn on to a round that it would not change in."""
    seeds = list(zip(*line.by_seed(results, measure), strict=True))
    seeds += seeds[-1:] * (least - len(seeds))
    means, low, high = ([scale * of(values) for values in seeds] for of in (statistics.fmean, min, max))
    return Curve(line.name, line.base, line.selection, means, low, high)


def _describe_curve(curve: Curve) -> str:
    return f"{curve.name} from {format_number(curve.values[0])} to {format_number(curve.values[-1])}"


def _describe_range(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return f"between {format_number(min(finite))} and {format_number(max(finite))}" if finite else "not measured"


def _name_with_round(line: MethodSeries, results: Results, last: int) -> str:
    rounds = line.rounds(results)
    return line.name if rounds == last or line.steady(results) else f"{line.name} @{rounds}"


def _title(stream: StreamGroup, streams: Sequence[StreamGroup]) -> str:
    """The image set and the network, and whatever else tells the stream from others that would be called the same."""
    spec = stream.spec
    return ", ".join([spec.images, spec.model, *distinguishing_fields(spec, [other.spec for other in streams])])


def _describe_domains(stream: StreamGroup) -> str:
    count = len(stream.spec.domains)
    return f"{count} domains" if count > 1 else stream.spec.domains[0]


def _describe_seeds(streams: Sequence[StreamGroup]) -> str:
    most = max(len(line.cells) for stream in streams for line in stream.lines)
    return f" and up to {most} seeds; the bands reach from the least seed to the greatest" if most > 1 else ""
