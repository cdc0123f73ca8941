"""The paper's figures that look into selection: from rows to drawings, and to numbers for other programs."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from driftproof.bench import Results, Spec, suite
from driftproof.bench.gradients import EVERYWHERE
from driftproof.bench.histograms import KINDS, edges
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
    for index, (where, cells) in enumerate(_streams(results, rules), start=1):
        qualities = {spec.method: pooled(results, spec) for spec in cells}
        others = [method for method in dict.fromkeys(spec.method for spec in rules) if method not in qualities]
        shown = {"precision": lambda q: q.precision, "recall": lambda q: q.recall}
        caption = "Of the samples that TENT learned from under each rule: precision and recall in each round."
        caption += f" Not run: {', '.join(others)}." * bool(others)
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
        round: Which; None for the last complete one.
    """
    cells = [spec for spec in results.cells if "histograms" in spec.measures and results.rounds(spec)]
    found = [(where, spec) for where, together in _streams(results, cells) for spec in together]
    for index, (where, spec) in enumerate(found, start=1):
        chosen = results.rounds(spec) if round is None else round
        counts = _counts(results, spec, chosen)
        aurocs = {name: _auroc(results, spec, chosen, measure) for name, measure in _SCORES.items()}
        panels = [
            Histogram(words, edges(name), counts[name], f"AUROC {number(aurocs[name])}")
            for name, words in _WORDS.items()
        ]
        caption = f"{spec.method} in round {chosen}; the AUROC of right predictions, mean over domains."
        told = ", ".join(f"AUROC of {_WORDS[name]} {number(value)}" for name, value in aurocs.items())
        bins = {name: edges(name) for name in _WORDS}
        numbers = {"cell": spec.name, "round": chosen, "auroc": aurocs, "edges": bins, "counts": counts}
        yield _insight(f"scores-{index}", where, caption, told, numbers, partial(draw_histograms, panels))


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
    for together, drawing in zip(drawn_together(results, streams), round_drawings(results, streams), strict=True):
        numbers = {
            stream.name: {line.name: line.per_round(results, stream.quantity.measure) for line in stream.lines}
            for stream in together
        }
        yield Insight(drawing.name, numbers, partial(_itself, drawing))


ANALYSES: dict[str, Callable[..., Iterator[Insight]]] = {
    "selection": selection,
    "scores": scores,
    "gradients": gradients,
    "curves": curves,
}

_COLOURS_OF = {"": "tent", "confident": "gce", "certain": "eata", "crowd": "ent"}
"""Whose colour and mark each rule takes, as they are all of one method."""

_WORDS = {"confidence": "confidence", "confidence_difference": "confidence difference"}
_SCORES = {"confidence": "msp/including/auroc", "confidence_difference": "confidence_difference/including/auroc"}


def _streams(results: Results, specs: Iterable[Spec]) -> list[tuple[str, list[Spec]]]:
    """Cells that were measured, together with the others on the same images; of several seeds the first."""
    groups: dict[str, list[Spec]] = {}
    for spec in specs:
        for run in results.seeds(spec)[:1]:
            among = f" ({run.unknown})" if run.unknown else ""
            group = groups.setdefault(f"{run.images}, {run.model}, {run.setting}{among}", [])
            group.extend([run] if run not in group else [])
    return sorted(groups.items())


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
    return Curve(method, _COLOURS_OF[rule], rule, values, values, values)


def _counts(results: Results, spec: Spec, round: int) -> dict[str, dict[str, list[int]]]:
    rows = [row for row in results.rows(spec) if row["round"] == round]
    if not rows or any(row.get("histogram/confidence/correct") is None for row in rows):
        raise InputError(
            f"Expected histograms of round {round} of {spec.name}, but there are none. "
            "Archives keep those of the first and the last round."
        )
    return {
        name: {kind: _added([row[f"histogram/{name}/{kind}"] for row in rows]) for kind in KINDS} for name in _WORDS
    }


def _added(histograms: Sequence[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip(*histograms, strict=True)]


def _auroc(results: Results, spec: Spec, round: int, measure: str) -> float:
    found = [row.get(measure) for row in results.rows(spec) if row["round"] == round]
    return statistics.fmean(float("nan") if value is None else value for value in found)


def _cosine(value: float | None) -> str:
    return "unknown" if value is None else number(value, 2)


def _itself(drawing: Drawing) -> Drawing:
    return drawing


def _finite(value: Any) -> Any:  # noqa: ANN401  # whatever JSON knows
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
