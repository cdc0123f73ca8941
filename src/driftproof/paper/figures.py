"""The paper's figures on selection, scores and gradients: their data, and how to draw them."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from driftproof.bench import Results, Spec
from driftproof.bench.gradients import ALL_DOMAINS
from driftproof.bench.histograms import KINDS, edges
from driftproof.bench.store import Row
from driftproof.errors import InputError
from driftproof.paper.suites import suite
from driftproof.report.curves import Curve, Panel, draw_curves
from driftproof.report.figures import group_by_figure, round_figures
from driftproof.report.heatmap import HeatmapData, draw_heatmap
from driftproof.report.histograms import Histogram, draw_histograms
from driftproof.report.numbers import format_number
from driftproof.report.responsive import Layout, ResponsiveFigure, make_figure
from driftproof.report.selection_quality import SelectionCounts, selection_quality_per_round
from driftproof.report.series import group_streams

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ANALYSES", "FigureData"]


@dataclass(frozen=True)
class FigureData:
    """The data of one figure.

    Attributes:
        name: Of its files.
        numbers: The numbers it shows.
        draw: Draws the figure.
    """

    name: str
    numbers: dict[str, Any]
    draw: Callable[[], ResponsiveFigure]

    def as_data(self) -> dict[str, Any]:
        """The numbers for JSON: NaN and infinity become None."""
        data: dict[str, Any] = _replace_nonfinite(self.numbers)
        return data


def selection(results: Results) -> Iterator[FigureData]:
    """Precision and recall of TENT under each selection rule, and how many samples lose confidence."""
    rules = list(suite("rules").specs())
    methods = dict.fromkeys(spec.method for spec in rules)
    groups = _group_by_stream(run for spec in rules for run in results.seeds(spec))
    for index, (title, specs) in enumerate(groups, start=1):
        ran = [spec.method for spec in specs]
        qualities = {spec.method: counts for spec in specs if (counts := selection_quality_per_round(results, spec))}
        caption = "Precision and recall of the samples that TENT learned from under each selection rule, in each round."
        caption += _name_list("Not run", [method for method in methods if method not in ran])
        caption += _name_list("Not counted", [method for method in ran if method not in qualities])
        shown = {"precision": lambda q: q.precision, "recall": lambda q: q.recall}
        if qualities:
            yield _round_figure(f"selection-{index}", title, caption, qualities, shown)
        lost = {
            spec.method: counts for spec in specs if (counts := selection_quality_per_round(results, spec, "crowd/"))
        }
        shown = {"lost confidence": lambda q: q.rejected_share, "wrong among those": lambda q: q.negative_precision}
        caption = "Share of samples that lost confidence, and share of those that are wrong or unknown, in each round."
        if lost:
            yield _round_figure(f"rejected-{index}", title, caption, lost, shown)


def scores(results: Results, round: int | None = None) -> Iterator[FigureData]:
    """Histograms of confidence and its change for correct, wrong and unknown samples in one round.

    Args:
        results: The results folder.
        round: The round; None for the last complete one. Runs without it are left out and named in the caption.
    """
    candidates = [spec for spec in results.runs if "histograms" in spec.measures and results.rounds(spec)]
    titles = {spec: title for title, group in _group_by_stream(candidates) for spec in group}
    rounds = {spec: results.rounds(spec) if round is None else round for spec in titles}
    available = {spec: rows for spec in titles if (rows := _rows_with_histograms(results, spec, rounds[spec]))}
    if titles and not available:
        wanted = "the last round" if round is None else f"round {round}"
        raise InputError(
            f"Expected histograms of {wanted}, but no run has completed it and kept them. "
            "Archives keep histograms of the first and the last round only."
        )
    missing = [spec.name for spec in titles if spec not in available]
    left_out = _name_list("Left out, without histograms of the round", missing)
    for index, (spec, rows) in enumerate(available.items(), start=1):
        yield _histogram_figure(f"scores-{index}", titles[spec], spec, rows, left_out)


def gradients(results: Results) -> Iterator[FigureData]:
    """Mean cosine similarity between the gradients of samples, by class and prediction."""
    specs = [spec for spec in results.runs if spec.task == "gradients" and results.rows(spec)]
    for index, spec in enumerate(sorted(specs, key=lambda spec: spec.name), start=1):
        (row,) = (row for row in results.rows(spec) if row["domain"] == ALL_DOMAINS)
        values = [[float("nan") if value is None else value for value in line] for line in row["cosines"]]
        classes = [str(label) for label in range(len(values))]
        heatmap = HeatmapData(
            [f"class {name}" for name in classes], [f"as {name}" for name in classes], values, digits=2, has_mean=False
        )
        title = f"{spec.images}, {spec.model}, weight of {dict(spec.options)['layer']}"
        caption = (
            "Mean cosine between gradients of samples of class j predicted as class i and of correct samples of i."
        )
        description = (
            f"on the diagonal {_format_cosine(row['right'])} on average, elsewhere {_format_cosine(row['wrong'])}"
        )
        numbers = {"cell": spec.name, "options": dict(spec.options), **row}
        yield _figure_data(f"gradients-{index}", title, caption, description, numbers, partial(draw_heatmap, heatmap))


def curves(results: Results) -> Iterator[FigureData]:
    """The error or mean IoU of every method in each round."""
    streams = group_streams(results)
    figures = cache(partial(round_figures, results, streams))
    for index, group in enumerate(group_by_figure(results, streams)):
        numbers = {
            stream.name: {series.name: series.per_round(results, stream.metric.key) for series in stream.series}
            for stream in group
        }
        yield FigureData(f"rounds-{index + 1}", numbers, partial(_pick_figure, figures, index))


ANALYSES: dict[str, Callable[..., Iterator[FigureData]]] = {
    "selection": selection,
    "scores": scores,
    "gradients": gradients,
    "curves": curves,
}

_COLOR_METHODS = {"": "tent", "confident": "gce", "certain": "eata", "crowd": "ent"}
"""The method whose color and marker each selection rule borrows, as all are rules of TENT."""

_SCORE_LABELS = {"confidence": "confidence", "confidence_difference": "confidence difference"}
_SCORE_METRICS = {"confidence": "msp/including/auroc", "confidence_difference": "confidence_difference/including/auroc"}


def _group_by_stream(specs: Iterable[Spec]) -> list[tuple[str, list[Spec]]]:
    """Group runs by stream, with a title; only the first seed of each run."""
    firsts: dict[Spec, Spec] = {}
    for spec in sorted(specs, key=lambda spec: spec.seed):
        firsts.setdefault(replace(spec, seed=0), spec)
    groups: dict[str, list[Spec]] = {}
    for spec in firsts.values():
        unknown = f" ({spec.unknown})" if spec.unknown else ""
        groups.setdefault(f"{spec.images}, {spec.model}, {spec.setting}{unknown}", []).append(spec)
    return sorted(groups.items())


def _name_list(label: str, names: Sequence[str]) -> str:
    return f" {label}: {', '.join(names)}." if names else ""


def _round_figure(
    name: str,
    title: str,
    caption: str,
    counts: dict[str, list[SelectionCounts]],
    metrics: dict[str, Callable[[SelectionCounts], float]],
) -> FigureData:
    numbers = {
        method: {label: [compute(each) for each in rounds] for label, compute in metrics.items()}
        for method, rounds in counts.items()
    }
    panels = [
        Panel(label, "%", [_curve(method, values[label]) for method, values in numbers.items()], full_range=True)
        for label in metrics
    ]
    last = "; ".join(
        f"{method}: {', '.join(f'{label} {format_number(rounds[-1])}' for label, rounds in values.items())}"
        for method, values in numbers.items()
    )
    return _figure_data(name, title, caption, f"in the last round {last}", numbers, partial(draw_curves, panels))


def _figure_data(
    name: str, title: str, caption: str, description: str, numbers: dict[str, Any], draw: Callable[[Layout], "Figure"]
) -> FigureData:
    return FigureData(name, numbers, partial(make_figure, name, title, caption, description, draw))


def _curve(method: str, values: Sequence[float]) -> Curve:
    rule = method.partition("+")[2]
    return Curve(method, _COLOR_METHODS[rule], rule, values, values, values)


def _histogram_figure(name: str, title: str, spec: Spec, rows: Sequence[Row], left_out: str) -> FigureData:
    round, bins = rows[0]["round"], {score: edges(score) for score in _SCORE_LABELS}
    counts = _sum_histograms(rows)
    aurocs = {score: _mean_auroc(rows, metric) for score, metric in _SCORE_METRICS.items()}
    panels = [
        Histogram(label, bins[score], counts[score], f"AUROC {format_number(aurocs[score])}")
        for score, label in _SCORE_LABELS.items()
    ]
    caption = f"{spec.method} in round {round}; AUROC of correct predictions, mean over domains.{left_out}"
    description = ", ".join(
        f"AUROC of {_SCORE_LABELS[score]} {format_number(value)}" for score, value in aurocs.items()
    )
    numbers = {"cell": spec.name, "round": round, "auroc": aurocs, "edges": bins, "counts": counts}
    return _figure_data(name, title, caption, description, numbers, partial(draw_histograms, panels))


def _rows_with_histograms(results: Results, spec: Spec, round: int) -> list[Row]:
    """The rows of a round; empty if it is not complete or its histograms were not kept."""
    rows = [row for row in results.rows(spec) if row["round"] == round]
    kept = all(row.get("histogram/confidence/correct") is not None for row in rows)
    return rows if kept and round <= results.rounds(spec) else []


def _sum_histograms(rows: Sequence[Row]) -> dict[str, dict[str, list[int]]]:
    return {
        score: {kind: _add_counts([row[f"histogram/{score}/{kind}"] for row in rows]) for kind in KINDS}
        for score in _SCORE_LABELS
    }


def _add_counts(histograms: Sequence[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip(*histograms, strict=True)]


def _mean_auroc(rows: Sequence[Row], metric: str) -> float:
    values = [row.get(metric) for row in rows]
    return statistics.fmean(float("nan") if value is None else value for value in values)


def _format_cosine(value: float | None) -> str:
    return "unknown" if value is None else format_number(value, 2)


def _pick_figure(figures: Callable[[], Sequence[ResponsiveFigure]], index: int) -> ResponsiveFigure:
    return figures()[index]


def _replace_nonfinite(value: Any) -> Any:  # noqa: ANN401  # any JSON value
    if isinstance(value, dict):
        return {key: _replace_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replace_nonfinite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
