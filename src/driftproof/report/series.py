"""Group the runs of a results folder into curves and streams."""

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
    """The metric that the curves of a stream show.

    Attributes:
        key: Its key in the rows.
        label: Its name in sentences.
        unit: Its label on an axis.
        lower_is_better: Whether smaller values are better.
    """

    key: str
    label: str
    unit: str
    lower_is_better: bool


_MAX_LISTED_DOMAINS = 5
"""Titles list at most this many domains."""

_SELECTION_OPTIONS = ("margin", "mean_entropy", "on")
"""Options that belong to a selection, not to the method."""

_SYMBOLS = {"epsilon": "ε", "mean_entropy": "λ_max"}
"""Symbols of some options in the paper."""

_DIAGNOSTIC_OPTIONS = ("novelty",)
"""Options that change what is recorded, not what is computed."""

_ERROR = MetricInfo("error", "error", "error %", lower_is_better=True)
_MEAN_IOU = MetricInfo("mean_iou", "mean IoU", "mIoU %", lower_is_better=False)


@dataclass(frozen=True)
class MethodSeries:
    """All seeds of one method on one stream: a curve of a figure.

    Attributes:
        method: Its name in the results.
        variant: The options that distinguish it from other series of the same method and stream; mostly empty.
        specs: The run of each seed.
    """

    method: str
    variant: str
    specs: tuple[Spec, ...]

    @property
    def name(self) -> str:
        """Method and variant, as shown to readers."""
        return f"{self.method}, {self.variant}" if self.variant else self.method

    @property
    def base_name(self) -> str:
        """The name without the selection, shared with the plain method."""
        return replace(self, method=self.method.partition("+")[0]).name

    @property
    def selection(self) -> str:
        """The part after the plus sign; empty for a plain method."""
        return self.method.partition("+")[2]

    def adds_selection_to(self, plain: "MethodSeries") -> bool:
        """Whether this is `plain` with a selection: the options that both have are equal."""
        ours, theirs = (dict(series.specs[0].options) for series in (self, plain))
        common = ours.keys() & theirs.keys() - {*_SELECTION_OPTIONS, *_DIAGNOSTIC_OPTIONS}
        return self.method.partition("+")[0] == plain.method and all(ours[key] == theirs[key] for key in common)

    def rounds(self, results: Results) -> int:
        """The number of complete rounds of the longest seeds."""
        return max(results.rounds(spec) for spec in self.specs)

    def longest_seeds(self, results: Results) -> list[Spec]:
        """The seeds with the most complete rounds; shorter ones are ignored."""
        return [spec for spec in self.specs if results.rounds(spec) == self.rounds(results)]

    def is_stateless(self, results: Results) -> bool:
        """Whether the method learns nothing, so that its last round stands for all later ones."""
        return all(results.is_stateless(spec) for spec in self.specs)

    def by_seed(self, results: Results, metric: str) -> list[list[float]]:
        """The mean over domains for each round, one list per seed."""
        return [results.per_round(spec, metric) for spec in self.longest_seeds(results)]

    def per_round(self, results: Results, metric: str) -> list[float]:
        """The mean over domains and seeds for each round."""
        return [statistics.fmean(seeds) for seeds in zip(*self.by_seed(results, metric), strict=True)]

    def per_domain(self, results: Results, metric: str) -> list[float]:
        """The mean over seeds for each domain of the last round."""
        last, domains = self.rounds(results), self.specs[0].domains
        seeds = [_values_in_round(results.rows(spec), last, metric) for spec in self.longest_seeds(results)]
        return [statistics.fmean(seed.get(domain, math.nan) for seed in seeds) for domain in domains]

    def within_domain(self, results: Results, metrics: Sequence[str]) -> list[float]:
        """Intermediate values of each domain of the last round, concatenated.

        Args:
            results: The results folder.
            metrics: Keys of the intermediate values, in the order they were taken.
        """
        by_metric = [self.per_domain(results, metric) for metric in metrics]
        return [value for domain in zip(*by_metric, strict=True) for value in domain]


@dataclass(frozen=True)
class StreamGroup:
    """All series that ran on the same images.

    Attributes:
        spec: The fields that their runs share; its method, options and seed mean nothing.
        series: In the order of the paper's tables, a plain method before the same one with a selection.
        qualifiers: What distinguishes it from streams of the folder with the same name; mostly empty.
    """

    spec: Spec
    series: tuple[MethodSeries, ...]
    qualifiers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Images, setting and qualifiers, as shown to readers."""
        return ", ".join((self.spec.images, self.setting, *self.qualifiers))

    @property
    def setting(self) -> str:
        """Closed, or open with the name of the unknown images; scenes contain their unknown objects."""
        if self.is_segmentation:
            return "unknown objects among the known"
        return "closed" if self.spec.unknown is None else f"open ({self.spec.unknown})"

    @property
    def is_segmentation(self) -> bool:
        """Whether pixels are classified, not images."""
        return "iou" in self.spec.measures

    @property
    def metric(self) -> MetricInfo:
        """The metric that its curves show."""
        return _MEAN_IOU if self.is_segmentation else _ERROR

    def rounds(self, results: Results) -> int:
        """The number of complete rounds of the longest series."""
        return max(series.rounds(results) for series in self.series)

    def pairs(self) -> list[tuple[MethodSeries, MethodSeries]]:
        """Each plain method with the same method under a selection, which may have options of its own."""
        plain = [series for series in self.series if not series.selection]
        candidates = ((_find_plain(series, plain), series) for series in self.series if series.selection)
        return [(without, series) for without, series in candidates if without is not None]


def _find_plain(series: MethodSeries, plain: Iterable[MethodSeries]) -> MethodSeries | None:
    """The plain method of a selecting one: by options, then by name, then by the fewest options."""
    rivals = [rival for rival in plain if series.adds_selection_to(rival)]
    same_name = [rival for rival in rivals if rival.name == series.base_name]
    fewest = min((len(rival.specs[0].options) for rival in rivals), default=0)
    chosen = same_name or [rival for rival in rivals if len(rival.specs[0].options) == fewest]
    return chosen[0] if len(chosen) == 1 else None


def group_streams(results: Results) -> list[StreamGroup]:
    """Every stream of a results folder with at least one complete round."""
    specs = [spec for spec in results.runs if spec.task == "stream" and results.rounds(spec)]
    groups = _group_by(specs, _stream_key)
    order = sorted(groups, key=_sort_key)
    return [
        StreamGroup(spec, tuple(_make_series(groups[spec], results)), tuple(_qualifiers(spec, order))) for spec in order
    ]


def _sort_key(spec: Spec) -> tuple[Any, ...]:
    return spec.images, spec.model, spec.unknown or "", spec.domains, -spec.batch_size, spec.name


def distinguishing_fields(spec: Spec, others: Iterable[Spec]) -> list[str]:
    """Describe the fields in which a stream differs from others with the same images and network.

    Args:
        spec: The fields that the stream's runs share.
        others: The same for other streams.
    """
    rivals = [other for other in others if (other.images, other.model) == (spec.images, spec.model)]
    fields = {
        "batch_size": f"batches of {spec.batch_size}",
        "severity": f"severity {spec.severity}",
        "limit": "every image" if spec.limit is None else f"the first {spec.limit} images of each domain",
        "domains": _describe_domains(spec.domains, [rival.domains for rival in rivals]),
    }
    return [text for field, text in fields.items() if len({getattr(rival, field) for rival in [spec, *rivals]}) > 1]


def _describe_domains(domains: Sequence[str], others: Iterable[Sequence[str]]) -> str:
    """All domains if they are few; otherwise the first and the last, unless others share these."""
    ends = len(domains), domains[0], domains[-1]
    ambiguous = any(other != domains and (len(other), other[0], other[-1]) == ends for other in others)
    listed = ambiguous or len(domains) <= _MAX_LISTED_DOMAINS
    return ", ".join(domains) if listed else "{} domains from {} to {}".format(*ends)


def _qualifiers(spec: Spec, others: Sequence[Spec]) -> Iterable[str]:
    if any(other.images == spec.images and other.model != spec.model for other in others):
        yield spec.model
    yield from distinguishing_fields(spec, [other for other in others if other.unknown == spec.unknown])


def _stream_key(spec: Spec) -> Spec:
    measures = ("iou",) if "iou" in spec.measures else ("error",)
    return replace(spec, method="", options=(), seed=0, measures=measures)


def _make_series(specs: Sequence[Spec], results: Results) -> Iterable[MethodSeries]:
    by_method = _group_by(specs, lambda spec: spec.method)
    for method, same in sorted(by_method.items(), key=lambda item: method_order(item[0])):
        variants = _group_by(same, lambda spec: spec.options)
        varying = _varying_options([dict(options) for options in variants])
        for options, seeds in sorted(variants.items(), key=lambda item: _option_order(item[0], varying)):
            variant = ", ".join(_format_option(key, value) for key, value in options if key in varying)
            # Runs of one seed may differ in their metrics: the longest is kept.
            longest = {spec.seed: spec for spec in sorted(seeds, key=results.rounds)}
            yield MethodSeries(method, variant, tuple(longest[seed] for seed in sorted(longest)))


def _format_option(name: str, value: Any) -> str:  # noqa: ANN401  # any option value
    return f"{_SYMBOLS.get(name, name)}={value:g}" if isinstance(value, float) else f"{name}={value}"


def _option_order(options: Sequence[tuple[str, Any]], varying: Container[str]) -> list[tuple[str, bool, Any]]:
    """Sort key by the options that vary: numbers ascending, before text."""
    values = [(key, value) for key, value in options if key in varying]
    return [(key, False, value) if isinstance(value, int | float) else (key, True, str(value)) for key, value in values]


def _varying_options(options: Sequence[dict[str, Any]]) -> set[str]:
    return {key for key in itertools.chain(*options) if len({repr(each.get(key, "")) for each in options}) > 1}


def method_order(method: str) -> tuple[int, str]:
    """Sort key of a method: the paper's order, plain before selecting."""
    base, known = method.partition("+")[0], list(METHODS)
    return (known.index(base) if base in known else len(known)), method


def _group_by(specs: Iterable[Spec], key: Any) -> dict[Any, list[Spec]]:  # noqa: ANN401  # any hashable key
    groups: dict[Any, list[Spec]] = {}
    for spec in specs:
        groups.setdefault(key(spec), []).append(spec)
    return groups


def _values_in_round(rows: Iterable[dict[str, Any]], round: int, metric: str) -> dict[str, float]:
    return {
        row["domain"]: math.nan if row.get(metric) is None else row[metric] for row in rows if row["round"] == round
    }
