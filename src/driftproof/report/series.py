"""Measured streams: which cells are one line of a figure, and which lines belong together."""

import itertools
import math
import statistics
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from driftproof.bench import METHODS, Results, Spec

__all__ = ["MethodSeries", "MetricInfo", "StreamGroup", "distinguishing_fields", "group_streams", "method_order"]


@dataclass(frozen=True)
class MetricInfo:
    """What the curves of a stream show.

    Attributes:
        measure: Its name in the rows.
        words: Its name in sentences.
        unit: Its name on an axis.
        lower_is_better: Whether less of it is better.
    """

    measure: str
    words: str
    unit: str
    lower_is_better: bool


_MAX_LISTED_DOMAINS = 5
"""Domains that a title has room for."""

_SELECTION_OPTIONS = ("margin", "mean_entropy", "on")
"""Options that a selection brings with it."""

_SYMBOLS = {"epsilon": "ε", "mean_entropy": "λ_max"}
"""What formulas call some options."""

_DIAGNOSTIC_OPTIONS = ("novelty",)
"""Options that change nothing but what is looked at."""

_ERROR = MetricInfo("error", "error", "error %", lower_is_better=True)
_MEAN_IOU = MetricInfo("mean_iou", "mean IoU", "mIoU %", lower_is_better=False)


@dataclass(frozen=True)
class MethodSeries:
    """A method on a stream, with all its seeds.

    Attributes:
        method: By its name in the results.
        variant: The options that tell it from others of its name on the same stream; mostly empty.
        cells: One for each seed.
    """

    method: str
    variant: str
    cells: tuple[Spec, ...]

    @property
    def name(self) -> str:
        """What a reader calls it."""
        return f"{self.method}, {self.variant}" if self.variant else self.method

    @property
    def base(self) -> str:
        """The name without the selection: what it shares with the method it is compared with."""
        return replace(self, method=self.method.partition("+")[0]).name

    @property
    def selection(self) -> str:
        """What follows the plus sign; empty for a plain method."""
        return self.method.partition("+")[2]

    def extends(self, plain: "MethodSeries") -> bool:
        """Whether it is this plain method with a selection: all options that both have are the same in both."""
        ours, theirs = (dict(line.cells[0].options) for line in (self, plain))
        shared = ours.keys() & theirs.keys() - {*_SELECTION_OPTIONS, *_DIAGNOSTIC_OPTIONS}
        return self.method.partition("+")[0] == plain.method and all(ours[key] == theirs[key] for key in shared)

    def rounds(self, results: Results) -> int:
        """How many rounds the seeds that have come furthest have completed."""
        return max(results.rounds(cell) for cell in self.cells)

    def furthest(self, results: Results) -> list[Spec]:
        """The seeds that count: one that has only begun takes back nothing that others have reached."""
        return [cell for cell in self.cells if results.rounds(cell) == self.rounds(results)]

    def steady(self, results: Results) -> bool:
        """Whether it learns nothing, so that its last round stands for all that follow."""
        return all(results.is_stateless(cell) for cell in self.cells)

    def by_seed(self, results: Results, measure: str) -> list[list[float]]:
        """The mean over domains for each round, seed by seed."""
        return [results.per_round(cell, measure) for cell in self.furthest(results)]

    def per_round(self, results: Results, measure: str) -> list[float]:
        """The mean over domains and seeds for each round."""
        return [statistics.fmean(seeds) for seeds in zip(*self.by_seed(results, measure), strict=True)]

    def per_domain(self, results: Results, measure: str) -> list[float]:
        """The mean over seeds for each domain of the last round."""
        last, domains = self.rounds(results), self.cells[0].domains
        found = [_values_in_round(results.rows(cell), last, measure) for cell in self.furthest(results)]
        return [statistics.fmean(seed.get(domain, math.nan) for seed in found) for domain in domains]

    def course(self, results: Results, measures: Sequence[str]) -> list[float]:
        """Measures that were taken one after the other in each domain of the last round, all in a row."""
        by_measure = [self.per_domain(results, measure) for measure in measures]
        return [value for domain in zip(*by_measure, strict=True) for value in domain]


@dataclass(frozen=True)
class StreamGroup:
    """Lines that have met the same images.

    Attributes:
        spec: What their cells have in common; method, options and seed mean nothing here.
        lines: In the order of the paper's tables, a method before the same one with a selection.
        apart: What tells it from others of the folder that would be called the same; mostly empty.
    """

    spec: Spec
    lines: tuple[MethodSeries, ...]
    apart: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What a reader calls it."""
        return ", ".join((self.spec.images, self.setting, *self.apart))

    @property
    def setting(self) -> str:
        """Closed, or among which unknown images; scenes have theirs within the frames."""
        if self.of_pixels:
            return "unknown objects among the known"
        return "closed" if self.spec.unknown is None else f"open ({self.spec.unknown})"

    @property
    def of_pixels(self) -> bool:
        """Whether pixels are classified, not images."""
        return "iou" in self.spec.measures

    @property
    def quantity(self) -> MetricInfo:
        """What its curves show."""
        return _MEAN_IOU if self.of_pixels else _ERROR

    def rounds(self, results: Results) -> int:
        """How many rounds the furthest line has completed."""
        return max(line.rounds(results) for line in self.lines)

    def pairs(self) -> list[tuple[MethodSeries, MethodSeries]]:
        """Each method together with the same one under a selection, which may have options of its own."""
        plain = [line for line in self.lines if not line.selection]
        found = ((_find_plain(line, plain), line) for line in self.lines if line.selection)
        return [(without, line) for without, line in found if without is not None]


def _find_plain(line: MethodSeries, plain: Iterable[MethodSeries]) -> MethodSeries | None:
    """The method that a selection was put on: by options, and where several would do, by name or by having fewest."""
    rivals = [rival for rival in plain if line.extends(rival)]
    named = [rival for rival in rivals if rival.name == line.base]
    fewest = min((len(rival.cells[0].options) for rival in rivals), default=0)
    chosen = named or [rival for rival in rivals if len(rival.cells[0].options) == fewest]
    return chosen[0] if len(chosen) == 1 else None


def group_streams(results: Results) -> list[StreamGroup]:
    """Every stream of a results folder on which at least one round is complete."""
    cells = [spec for spec in results.runs if spec.task == "stream" and results.rounds(spec)]
    groups = _group_by(cells, _stream_key)
    order = sorted(groups, key=_sort_key)
    return [StreamGroup(spec, tuple(_make_series(groups[spec], results)), tuple(_qualifiers(spec, order))) for spec in order]


def _sort_key(spec: Spec) -> tuple[Any, ...]:
    return spec.images, spec.model, spec.unknown or "", spec.domains, -spec.batch_size, spec.name


def distinguishing_fields(spec: Spec, others: Iterable[Spec]) -> list[str]:
    """What tells a stream from others on the same images with the same network.

    Args:
        spec: What the stream's cells have in common.
        others: What those of others have in common.
    """
    rivals = [other for other in others if (other.images, other.model) == (spec.images, spec.model)]
    facts = {
        "batch_size": f"batches of {spec.batch_size}",
        "severity": f"severity {spec.severity}",
        "limit": "every image" if spec.limit is None else f"the first {spec.limit} images of each domain",
        "domains": _describe_domains(spec.domains, [rival.domains for rival in rivals]),
    }
    return [words for field, words in facts.items() if len({getattr(rival, field) for rival in [spec, *rivals]}) > 1]


def _describe_domains(domains: Sequence[str], others: Iterable[Sequence[str]]) -> str:
    """All of a few; of many the first and the last, if no others begin and end like them."""
    ends = len(domains), domains[0], domains[-1]
    alike = any(other != domains and (len(other), other[0], other[-1]) == ends for other in others)
    return ", ".join(domains) if alike or len(domains) <= _MAX_LISTED_DOMAINS else "{} domains from {} to {}".format(*ends)


def _qualifiers(spec: Spec, others: Sequence[Spec]) -> Iterable[str]:
    if any(other.images == spec.images and other.model != spec.model for other in others):
        yield spec.model
    yield from distinguishing_fields(spec, [other for other in others if other.unknown == spec.unknown])


def _stream_key(spec: Spec) -> Spec:
    drawn = ("iou",) if "iou" in spec.measures else ("error",)
    return replace(spec, method="", options=(), seed=0, measures=drawn)


def _make_series(cells: Sequence[Spec], results: Results) -> Iterable[MethodSeries]:
    for method, same in sorted(
        _group_by(cells, lambda spec: spec.method).items(), key=lambda item: method_order(item[0])
    ):
        variants = _group_by(same, lambda spec: spec.options)
        distinguishing_items = _varying_options([dict(options) for options in variants])
        for options, seeds in sorted(variants.items(), key=lambda item: _option_order(item[0], distinguishing_items)):
            variant = ", ".join(_format_option(key, value) for key, value in options if key in distinguishing_items)
            longest = {spec.seed: spec for spec in sorted(seeds, key=results.rounds)}  # some differ in what is measured
            yield MethodSeries(method, variant, tuple(longest[seed] for seed in sorted(longest)))


def _format_option(name: str, value: Any) -> str:  # noqa: ANN401  # whatever an option may be
    return f"{_SYMBOLS.get(name, name)}={value:g}" if isinstance(value, float) else f"{name}={value}"


def _option_order(options: Sequence[tuple[str, Any]], distinguishing_items: Container[str]) -> list[tuple[str, bool, Any]]:
    """By what differs, numbers in their order and before words."""
    values = [(key, value) for key, value in options if key in distinguishing_items]
    return [(key, False, value) if isinstance(value, int | float) else (key, True, str(value)) for key, value in values]


def _varying_options(options: Sequence[dict[str, Any]]) -> set[str]:
    return {key for key in itertools.chain(*options) if len({repr(each.get(key, "")) for each in options}) > 1}


def method_order(method: str) -> tuple[int, str]:
    """Where a method stands in a list: in the order of the paper, plain before selecting."""
    base, known = method.partition("+")[0], list(METHODS)
    return (known.index(base) if base in known else len(known)), method


def _group_by(cells: Iterable[Spec], key: Any) -> dict[Any, list[Spec]]:  # noqa: ANN401  # whatever groups them
    groups: dict[Any, list[Spec]] = {}
    for spec in cells:
        groups.setdefault(key(spec), []).append(spec)
    return groups


def _values_in_round(rows: Iterable[dict[str, Any]], round: int, measure: str) -> dict[str, float]:
    return {
        row["domain"]: math.nan if row.get(measure) is None else row[measure] for row in rows if row["round"] == round
    }
