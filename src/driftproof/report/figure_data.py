"""The paper's figures that look into selection: from rows to drawings, and to numbers for other programs."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from driftproof.bench import Results, Spec, suite
from driftproof.bench.gradients import ALL_DOMAINS
from driftproof.bench.histograms import KINDS, edges
from driftproof.bench.store import Row
from driftproof.errors import InputError
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
    """One figure.

    Attributes:
        name: Of its files.
        numbers: What it shows.
        draw: Makes the figure.
    """

    name: str
    numbers: dict[str, Any]
    draw: Callable[[], ResponsiveFigure]

    def as_data(self) -> dict[str, Any]:
        """The numbers as JSON knows them: what is not finite is None."""
        told: dict[str, Any] = _replace_nonfinite(self.numbers)
        return told


def selection(results: Results) -> Iterator[FigureData]:
    """Precision and recall of TENT under each rule; and of plain TENT, what lost confidence and how much was wrong."""
    rules = list(suite("rules").specs())
    methods = dict.fromkeys(spec.method for spec in rules)
    for index, (where, cells) in enumerate(_group_by_stream(run for spec in rules for run in results.seeds(spec)), start=1):
        ran = [spec.method for spec in cells]
        qualities = {spec.method: found for spec in cells if (found := selection_quality_per_round(results, spec))}
        caption = "Of the samples that TENT learned from under each rule: precision and recall in each round."
        caption += _name_list("Not run", [method for method in methods if method not in ran])
        caption += _name_list("Not counted", [method for method in ran if method not in qualities])
        shown = {"precision": lambda q: q.precision, "recall": lambda q: q.recall}
        if qualities:
            yield _round_figure(f"selection-{index}", where, caption, qualities, shown)
        lost = {spec.method: found for spec in cells if (found := selection_quality_per_round(results, spec, "crowd/"))}
        shown = {"lost confidence": lambda q: q.rejected_share, "wrong among those": lambda q: q.negative_precision}
        caption = "Share of samples whose confidence fell, and how many of them are wrong or unknown, in each round."
        if lost:
            yield _round_figure(f"rejected-{index}", where, caption, lost, shown)


def scores(results: Results, round: int | None = None) -> Iterator[FigureData]:
    """How confidence and its change are spread over right, wrong and unknown predictions in one round.

    Args:
        results: Where the cells are.
        round: Which; None for the last complete one. Cells without it are left out, and named.
    """
    cells = [spec for spec in results.runs if "histograms" in spec.measures and results.rounds(spec)]
    places = {spec: where for where, together in _group_by_stream(cells) for spec in together}
    rounds = {spec: results.rounds(spec) if round is None else round for spec in places}
    told = {spec: rows for spec in places if (rows := _rows_with_histograms(results, spec, rounds[spec]))}
    if places and not told:
        which = "the last round" if round is None else f"round {round}"
        raise InputError(
            f"Expected histograms of {which}, but no cell has completed it and kept them. "
            "Archives keep those of the first and the last round."
        )
    left_out = _name_list("Left out, without histograms of the round", [spec.name for spec in places if spec not in told])
    for index, (spec, rows) in enumerate(told.items(), start=1):
        yield _histogram_figure(f"scores-{index}", places[spec], spec, rows, left_out)


def gradients(results: Results) -> Iterator[FigureData]:
    """The mean cosine between the gradients of samples, by class and prediction."""
    cells = [spec for spec in results.runs if spec.task == "gradients" and results.rows(spec)]
    for index, spec in enumerate(sorted(cells, key=lambda spec: spec.name), start=1):
        (row,) = (row for row in results.rows(spec) if row["domain"] == ALL_DOMAINS)
        values = [[float("nan") if value is None else value for value in line] for line in row["cosines"]]
        classes = [str(label) for label in range(len(values))]
        grid = HeatmapData(
            [f"class {name}" for name in classes], [f"as {name}" for name in classes], values, digits=2, summed_up=False
        )
        where = f"{spec.images}, {spec.model}, weight of {dict(spec.options)['layer']}"
        caption = "Mean cosine between gradients of samples of a class predicted as another, and of that other class."
        told = f"on the diagonal {_format_cosine(row['right'])} on average, elsewhere {_format_cosine(row['wrong'])}"
        numbers = {"cell": spec.name, "options": dict(spec.options), **row}
        yield _figure_data(f"gradients-{index}", where, caption, told, numbers, partial(draw_heatmap, grid))


def curves(results: Results) -> Iterator[FigureData]:
    """The error of every method in each round."""
    streams = group_streams(results)
    drawings = cache(partial(round_figures, results, streams))
    for index, together in enumerate(group_by_figure(results, streams)):
        numbers = {
            stream.name: {line.name: line.per_round(results, stream.quantity.measure) for line in stream.lines}
            for stream in together
        }
        yield FigureData(f"rounds-{index + 1}", numbers, partial(_pick_figure, drawings, index))


ANALYSES: dict[str, Callable[..., Iterator[FigureData]]] = {
    "selection": selection,
    "scores": scores,
    "gradients": gradients,
    "curves": curves,
}

_COLOR_METHODS = {"": "tent", "confident": "gce", "certain": "eata", "crowd": "ent"}
"""Whose color and mark each rule takes, as they are all of one method."""

_SCORE_LABELS = {"confidence": "confidence", "confidence_difference": "confidence difference"}
_SCORE_METRICS = {"confidence": "msp/including/auroc", "confidence_difference": "confidence_difference/including/auroc"}


def _group_by_stream(cells: Iterable[Spec]) -> list[tuple[str, list[Spec]]]:
    """Cells together with the others on the same images; of several seeds the first."""
    firsts: dict[Spec, Spec] = {}
    for spec in sorted(cells, key=lambda spec: spec.seed):
        firsts.setdefault(replace(spec, seed=0), spec)
    groups: dict[str, list[Spec]] = {}
    for spec in firsts.values():
        among = f" ({spec.unknown})" if spec.unknown else ""
        groups.setdefault(f"{spec.images}, {spec.model}, {spec.setting}{among}", []).append(spec)
    return sorted(groups.items())


def _name_list(words: str, names: Sequence[str]) -> str:
    return f" {words}: {', '.join(names)}." if names else ""


def _round_figure(
    name: str,
    where: str,
    caption: str,
    qualities: dict[str, list[SelectionCounts]],
    shown: dict[str, Callable[[SelectionCounts], float]],
) -> FigureData:
    numbers = {
        method: {words: [value(quality) for quality in found] for words, value in shown.items()}
        for method, found in qualities.items()
    }
    panels = [
        Panel(words, "%", [_curve(method, found[words]) for method, found in numbers.items()], whole=True)
        for words in shown
    ]
    told = "; ".join(
        f"{method}: {', '.join(f'{words} {format_number(values[-1])}' for words, values in found.items())}"
        for method, found in numbers.items()
    )
    return _figure_data(name, where, caption, f"in the last round {told}", numbers, partial(draw_curves, panels))


def _figure_data(
    name: str, title: str, caption: str, told: str, numbers: dict[str, Any], draw: Callable[[Layout], "Figure"]
) -> FigureData:
    return FigureData(name, numbers, partial(make_figure, name, title, caption, told, draw))


def _curve(method: str, values: Sequence[float]) -> Curve:
    rule = method.partition("+")[2]
    return Curve(method, _COLOR_METHODS[rule], rule, values, values, values)


def _histogram_figure(name: str, where: str, spec: Spec, rows: Sequence[Row], left_out: str) -> FigureData:
    round, bins = rows[0]["round"], {name: edges(name) for name in _SCORE_LABELS}
    counts, aurocs = _sum_histograms(rows), {name: _mean_auroc(rows, measure) for name, measure in _SCORE_METRICS.items()}
    panels = [
        Histogram(words, bins[name], counts[name], f"AUROC {format_number(aurocs[name])}") for name, words in _SCORE_LABELS.items()
    ]
    caption = f"{spec.method} in round {round}; the AUROC of right predictions, mean over domains.{left_out}"
    told = ", ".join(f"AUROC of {_SCORE_LABELS[name]} {format_number(value)}" for name, value in aurocs.items())
    numbers = {"cell": spec.name, "round": round, "auroc": aurocs, "edges": bins, "counts": counts}
    return _figure_data(name, where, caption, told, numbers, partial(draw_histograms, panels))


def _rows_with_histograms(results: Results, spec: Spec, round: int) -> list[Row]:
    """The rows of a round; none where it is not complete, or its histograms were not kept."""
    rows = [row for row in results.rows(spec) if row["round"] == round]
    kept = all(row.get("histogram/confidence/correct") is not None for row in rows)
    return rows if kept and round <= results.rounds(spec) else []


def _sum_histograms(rows: Sequence[Row]) -> dict[str, dict[str, list[int]]]:
    return {
        name: {kind: _add_counts([row[f"histogram/{name}/{kind}"] for row in rows]) for kind in KINDS} for name in _SCORE_LABELS
    }


def _add_counts(histograms: Sequence[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip(*histograms, strict=True)]


def _mean_auroc(rows: Sequence[Row], measure: str) -> float:
    found = [row.get(measure) for row in rows]
    return statistics.fmean(float("nan") if value is None else value for value in found)


def _format_cosine(value: float | None) -> str:
    return "unknown" if value is None else format_number(value, 2)


def _pick_figure(drawings: Callable[[], Sequence[ResponsiveFigure]], index: int) -> ResponsiveFigure:
    return drawings()[index]


def _replace_nonfinite(value: Any) -> Any:  # noqa: ANN401  # whatever JSON knows
    if isinstance(value, dict):
        return {key: _replace_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replace_nonfinite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
