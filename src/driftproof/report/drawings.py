"""The figures of a report, from its rows."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from driftproof.bench import Results
from driftproof.bench.pixels import COURSE
from driftproof.report.curves import Curve, Panel, draw_curves
from driftproof.report.figures import Drawing, drawn
from driftproof.report.heat import Grid, draw_heat
from driftproof.report.lines import Line, Stream, particulars
from driftproof.report.numbers import number

__all__ = ["course_drawings", "domain_drawings", "drawn_together", "round_drawings", "share_drawings"]

_SHARES = {"selected_known": "known", "selected_unknown": "unknown"}


def round_drawings(results: Results, streams: Sequence[Stream]) -> list[Drawing]:
    """How each method fared over the rounds: a figure for each image set, a panel for each setting."""
    drawings: list[Drawing] = []
    for together in drawn_together(results, streams):
        quantity = together[0].quantity
        panels = [
            Panel(stream.setting, quantity.unit, _curves_of(results, stream, quantity.measure)) for stream in together
        ]
        caption = f"{_sentence(quantity.words)} in each round, mean over {_domains(together[0])}{_seeds(together)}."
        drawings.append(_curves(f"rounds-{len(drawings) + 1}", _title(together[0], streams), caption, panels))
    return drawings


def course_drawings(results: Results, streams: Sequence[Stream]) -> list[Drawing]:
    """How each method fared on scenes while its last round went on."""
    drawings: list[Drawing] = []
    for stream in (stream for stream in streams if stream.of_pixels):
        last = stream.rounds(results)
        curves = []
        for line in stream.lines:
            values = line.course(results, COURSE)
            curves.append(Curve(_reached(line, results, last), line.base, line.selection, values, values, values))
        known = [curve for curve in curves if any(map(math.isfinite, curve.values))]
        if known:
            stretches = [domain.replace("_", " ") for domain in stream.spec.domains]
            panel = Panel(stream.setting, stream.quantity.unit, known, stretches=stretches)
            caption = f"{_sentence(stream.quantity.words)} over what had come of each domain by then, in round {last}."
            drawings.append(_curves(f"course-{len(drawings) + 1}", _title(stream, streams), caption, [panel]))
    return drawings


def share_drawings(results: Results, streams: Sequence[Stream]) -> list[Drawing]:
    """Which share of the images or pixels the selecting methods learned from; known and unknown ones apart."""
    drawings: list[Drawing] = []
    for stream in streams:
        if stream.rounds(results) > 1 and (panels := list(_share_panels(results, stream))):
            title = f"{_title(stream, streams)}, {stream.setting}"
            caption = f"Share of the {_samples(stream)} that a step learned from, in each round."
            drawings.append(_curves(f"selected-{len(drawings) + 1}", title, caption, panels))
    return drawings


def domain_drawings(results: Results, streams: Sequence[Stream]) -> list[Drawing]:
    """How each method fared in each domain of the last round, and on average."""
    drawings: list[Drawing] = []
    for stream in (stream for stream in streams if len(stream.spec.domains) > 1):
        quantity, last = stream.quantity, stream.rounds(results)
        values = [line.per_domain(results, quantity.measure) for line in stream.lines]
        names = [_reached(line, results, last) for line in stream.lines]
        domains = [domain.replace("_", " ") for domain in stream.spec.domains]
        grid = Grid(names, [*domains, "mean"], [[*row, statistics.fmean(row)] for row in values])
        title = f"{_title(stream, streams)}, {stream.setting}"
        marked = ", or of the round after @" if any("@" in name for name in names) else ""
        caption = f"{_sentence(quantity.words)} in percent for each domain of round {last}{marked}."
        rows = "; ".join(f"{name} {_range(row)}" for name, row in zip(names, values, strict=True))
        name = f"domains-{len(drawings) + 1}"
        drawings.append(drawn(name, title, caption, rows, partial(draw_heat, grid)))
    return drawings


def _share_panels(results: Results, stream: Stream) -> Iterator[Panel]:
    for measure, words in _SHARES.items():
        curves = _curves_of(results, stream, measure, scale=100)
        selecting = [curve for curve in curves if any(0 < value < 100 for value in curve.values)]
        if selecting:
            which = words if stream.spec.unknown or stream.of_pixels else "all"
            yield Panel(f"{which} {_samples(stream)}", "learned from, %", selecting, whole=True)


def _samples(stream: Stream) -> str:
    return "pixels" if stream.of_pixels else "images"


def _sentence(words: str) -> str:
    """With a capital at the beginning, and those in between left alone."""
    return words[:1].upper() + words[1:]


def _curves(name: str, title: str, caption: str, panels: Sequence[Panel]) -> Drawing:
    told = (f"{panel.title}: {', '.join(map(_course, panel.curves))}" for panel in panels)
    return drawn(name, title, caption, "; ".join(told), partial(draw_curves, panels))


def drawn_together(results: Results, streams: Sequence[Stream]) -> list[list[Stream]]:
    """The streams that are panels of one figure; of a single round there is nothing to draw."""
    groups: dict[object, list[Stream]] = {}
    for stream in streams:
        if stream.rounds(results) > 1:
            groups.setdefault(replace(stream.spec, unknown=None), []).append(stream)
    return list(groups.values())


def _curves_of(results: Results, stream: Stream, measure: str, scale: float = 1.0) -> list[Curve]:
    last = stream.rounds(results)
    return [_curve(results, line, measure, scale, last if line.steady(results) else 0) for line in stream.lines]


def _curve(results: Results, line: Line, measure: str, scale: float, least: int) -> Curve:
    """A line's course; drawn on to a round that it would not change in."""
    seeds = list(zip(*line.by_seed(results, measure), strict=True))
    seeds += seeds[-1:] * (least - len(seeds))
    means, low, high = ([scale * of(values) for values in seeds] for of in (statistics.fmean, min, max))
    return Curve(line.name, line.base, line.selection, means, low, high)


def _course(curve: Curve) -> str:
    return f"{curve.name} from {number(curve.values[0])} to {number(curve.values[-1])}"


def _range(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return f"between {number(min(finite))} and {number(max(finite))}" if finite else "not measured"


def _reached(line: Line, results: Results, last: int) -> str:
    rounds = line.rounds(results)
    return line.name if rounds == last or line.steady(results) else f"{line.name} @{rounds}"


def _title(stream: Stream, streams: Sequence[Stream]) -> str:
    """The image set and the network, and whatever else tells the stream from others that would be called the same."""
    spec = stream.spec
    return ", ".join([spec.images, spec.model, *particulars(spec, [other.spec for other in streams])])


def _domains(stream: Stream) -> str:
    count = len(stream.spec.domains)
    return f"{count} domains" if count > 1 else stream.spec.domains[0]


def _seeds(streams: Sequence[Stream]) -> str:
    most = max(len(line.cells) for stream in streams for line in stream.lines)
    return f" and up to {most} seeds; the bands reach from the least seed to the greatest" if most > 1 else ""
