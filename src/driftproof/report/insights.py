"""The paper's figures that look into selection: from rows to drawings, and to numbers for other programs."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from driftproof.bench import Results, Spec, suite
from driftproof.bench.gradients import EVERYWHERE
from driftproof.bench.histograms import KINDS, edges
from driftproof.bench.store import Row
from driftproof.errors import InputError
from driftproof.report.curves import Curve, Panel, draw_curves
from driftproof.report.drawings import drawn_together, round_drawings
from driftproof.report.figures import Drawing, Layout, drawn
from driftproof.report.heat import Grid, draw_heat
from driftproof.report.histograms import Histogram, draw_histograms
from driftproof.report.lines import measured_streams
from driftproof.report.numbers import number
from driftproof.report.pooled import Quality, pooled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ANALYSES", "Insight"]


@dataclass(frozen=True)
class Insight:
    """One figure.

    Attributes:
        name: Of its files.
        numbers: What it shows.
        draw: Makes the figure.
    """

    name: str
    numbers: dict[str, Any]
    draw: Callable[[], Drawing]

    def as_data(self) -> dict[str, Any]:
        """The numbers as JSON knows them: what is not finite is None."""
        told: dict[str, Any] = _finite(self.numbers)
        return told


def selection(results: Results) -> Iterator[Insight]:
    """Precision and recall of TENT under each rule; and of plain TENT, what lost confidence and how much was wrong."""
    rules = list(suite("rules").specs())
    methods = dict.fromkeys(spec.method for spec in rules)
    for index, (where, cells) in enumerate(_streams(run for spec in rules for run in results.seeds(spec)), start=1):
        ran = [spec.method for spec in cells]
        qualities = {spec.method: found for spec in cells if (found := pooled(results, spec))}
        caption = "Of the samples that TENT learned from under each rule: precision and recall in each round."
        caption += _named("Not run", [method for method in methods if method not in ran])
        caption += _named("Not counted", [method for method in ran if method not in qualities])
        shown = {"precision": lambda q: q.precision, "recall": lambda q: q.recall}
        if qualities:
            yield _over_rounds(f"selection-{index}", where, caption, qualities, shown)
        lost = {spec.method: found for spec in cells if (found := pooled(results, spec, "crowd/"))}
        shown = {"lost confidence": lambda q: q.rejected_share, "wrong among those": lambda q: q.negative_precision}
        caption = "Share of samples whose confidence fell, and how many of them are wrong or unknown, in each round."
        if lost:
            yield _over_rounds(f"rejected-{index}", where, caption, lost, shown)


def scores(results: Results, round: int | None = None) -> Iterator[Insight]:
    """How confidence and its change are spread over right, wrong and unknown predictions in one round.

    Args:
        results: Where the cells are.
        round: Which; None for the last complete one. Cells without it are left out, and named.
    """
    cells = [spec for spec in results.cells if "histograms" in spec.measures and results.rounds(spec)]
    places = {spec: where for where, together in _streams(cells) for spec in together}
    rounds = {spec: results.rounds(spec) if round is None else round for spec in places}
    told = {spec: rows for spec in places if (rows := _rows_with_histograms(results, spec, rounds[spec]))}
    if places and not told:
        which = "the last round" if round is None else f"round {round}"
        raise InputError(
            f"Expected histograms of {which}, but no cell has completed it and kept them. "
            "Archives keep those of the first and the last round."
        )
    left_out = _named("Left out, without histograms of the round", [spec.name for spec in places if spec not in told])
    for index, (spec, rows) in enumerate(told.items(), start=1):
        yield _spread(f"scores-{index}", places[spec], spec, rows, left_out)


def gradients(results: Results) -> Iterator[Insight]:
    """The mean cosine between the gradients of samples, by class and prediction."""
    cells = [spec for spec in results.cells if spec.task == "gradients" and results.rows(spec)]
    for index, spec in enumerate(sorted(cells, key=lambda spec: spec.name), start=1):
        (row,) = (row for row in results.rows(spec) if row["domain"] == EVERYWHERE)
        values = [[float("nan") if value is None else value for value in line] for line in row["cosines"]]
        classes = [str(label) for label in range(len(values))]
        grid = Grid(
            [f"class {name}" for name in classes], [f"as {name}" for name in classes], values, digits=2, summed_up=False
        )
        where = f"{spec.images}, {spec.model}, weight of {dict(spec.options)['layer']}"
        caption = "Mean cosine between gradients of samples of a class predicted as another, and of that other class."
        told = f"on the diagonal {_cosine(row['right'])} on average, elsewhere {_cosine(row['wrong'])}"
        numbers = {"cell": spec.name, "options": dict(spec.options), **row}
        yield _insight(f"gradients-{index}", where, caption, told, numbers, partial(draw_heat, grid))


def curves(results: Results) -> Iterator[Insight]:
    """The error of every method in each round."""
    streams = measured_streams(results)
    drawings = cache(partial(round_drawings, results, streams))
    for index, together in enumerate(drawn_together(results, streams)):
        numbers = {
            stream.name: {line.name: line.per_round(results, stream.quantity.measure) for line in stream.lines}
            for stream in together
        }
        yield Insight(f"rounds-{index + 1}", numbers, partial(_one_of, drawings, index))


ANALYSES: dict[str, Callable[..., Iterator[Insight]]] = {
    "selection": selection,
    "scores": scores,
    "gradients": gradients,
    "curves": curves,
}

_COLORS_OF = {"": "tent", "confident": "gce", "certain": "eata", "crowd": "ent"}
"""Whose color and mark each rule takes, as they are all of one method."""

_WORDS = {"confidence": "confidence", "confidence_difference": "confidence difference"}
_SCORES = {"confidence": "msp/including/auroc", "confidence_difference": "confidence_difference/including/auroc"}


def _streams(cells: Iterable[Spec]) -> list[tuple[str, list[Spec]]]:
    """Cells together with the others on the same images; of several seeds the first."""
    firsts: dict[Spec, Spec] = {}
    for spec in sorted(cells, key=lambda spec: spec.seed):
        firsts.setdefault(replace(spec, seed=0), spec)
    groups: dict[str, list[Spec]] = {}
    for spec in firsts.values():
        among = f" ({spec.unknown})" if spec.unknown else ""
        groups.setdefault(f"{spec.images}, {spec.model}, {spec.setting}{among}", []).append(spec)
    return sorted(groups.items())


def _named(words: str, names: Sequence[str]) -> str:
    return f" {words}: {', '.join(names)}." if names else ""


def _over_rounds(
    name: str,
    where: str,
    caption: str,
    qualities: dict[str, list[Quality]],
    shown: dict[str, Callable[[Quality], float]],
) -> Insight:
    numbers = {
        method: {words: [value(quality) for quality in found] for words, value in shown.items()}
        for method, found in qualities.items()
    }
    panels = [
        Panel(words, "%", [_curve(method, found[words]) for method, found in numbers.items()], whole=True)
        for words in shown
    ]
    told = "; ".join(
        f"{method}: {', '.join(f'{words} {number(values[-1])}' for words, values in found.items())}"
        for method, found in numbers.items()
    )
    return _insight(name, where, caption, f"in the last round {told}", numbers, partial(draw_curves, panels))


def _insight(
    name: str, title: str, caption: str, told: str, numbers: dict[str, Any], draw: Callable[[Layout], "Figure"]
) -> Insight:
    return Insight(name, numbers, partial(drawn, name, title, caption, told, draw))


def _curve(method: str, values: Sequence[float]) -> Curve:
    rule = method.partition("+")[2]
    return Curve(method, _COLORS_OF[rule], rule, values, values, values)


def _spread(name: str, where: str, spec: Spec, rows: Sequence[Row], left_out: str) -> Insight:
    round, bins = rows[0]["round"], {name: edges(name) for name in _WORDS}
    counts, aurocs = _counts(rows), {name: _auroc(rows, measure) for name, measure in _SCORES.items()}
    panels = [
        Histogram(words, bins[name], counts[name], f"AUROC {number(aurocs[name])}") for name, words in _WORDS.items()
    ]
    caption = f"{spec.method} in round {round}; the AUROC of right predictions, mean over domains.{left_out}"
    told = ", ".join(f"AUROC of {_WORDS[name]} {number(value)}" for name, value in aurocs.items())
    numbers = {"cell": spec.name, "round": round, "auroc": aurocs, "edges": bins, "counts": counts}
    return _insight(name, where, caption, told, numbers, partial(draw_histograms, panels))


def _rows_with_histograms(results: Results, spec: Spec, round: int) -> list[Row]:
    """The rows of a round; none where it is not complete, or its histograms were not kept."""
    rows = [row for row in results.rows(spec) if row["round"] == round]
    kept = all(row.get("histogram/confidence/correct") is not None for row in rows)
    return rows if kept and round <= results.rounds(spec) else []


def _counts(rows: Sequence[Row]) -> dict[str, dict[str, list[int]]]:
    return {
        name: {kind: _added([row[f"histogram/{name}/{kind}"] for row in rows]) for kind in KINDS} for name in _WORDS
    }


def _added(histograms: Sequence[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip(*histograms, strict=True)]


def _auroc(rows: Sequence[Row], measure: str) -> float:
    found = [row.get(measure) for row in rows]
    return statistics.fmean(float("nan") if value is None else value for value in found)


def _cosine(value: float | None) -> str:
    return "unknown" if value is None else number(value, 2)


def _one_of(drawings: Callable[[], Sequence[Drawing]], index: int) -> Drawing:
    return drawings()[index]


def _finite(value: Any) -> Any:  # noqa: ANN401  # whatever JSON knows
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
