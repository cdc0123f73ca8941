"""The paper's figures on selection, scores and gradients, and curves over rounds: their numbers and their charts."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from driftproof.bench.histograms import KINDS, edges
from driftproof.bench.libraries import alt, pl
from driftproof.bench.results import Results
from driftproof.bench.spec import Spec, distinguishing_fields
from driftproof.bench.tasks import ALL_DOMAINS
from driftproof.errors import InputError
from driftproof.paper.suites import suite
from driftproof.report.figures import heatmap, histogram, line_chart
from driftproof.report.sections import bin_shares
from driftproof.report.series import label_measures, label_runs, per_round
from driftproof.report.text import format_number

__all__ = ["ANALYSES", "PaperFigure"]

_SCORES = {"confidence": "msp", "confidence_difference": "confidence_difference"}
"""Scores with histograms, and the names of their AUROCs."""


class PaperFigure(NamedTuple):
    """One figure: the name of its files, its title and caption, the numbers it shows, and how to draw it."""

    name: str
    title: str
    caption: str
    numbers: dict[str, Any]
    draw: Callable[[], alt.TopLevelMixin]


def selection(results: Results) -> Iterator[PaperFigure]:
    """Precision and recall of TENT under each selection rule, and how many samples lose confidence."""
    quality, lost = _measure_selection(results, ""), _measure_selection(results, "crowd/")
    groups = _group_by_stream(run for spec in suite("rules").specs() for run in results.seeds(spec))
    for index, (title, specs) in enumerate(groups, start=1):
        labels = pl.DataFrame({"run": [spec.name for spec in specs], "label": [spec.method for spec in specs]})
        counted, losing = (labels.join(shares, on="run", maintain_order="left") for shares in (quality, lost))
        caption = "Precision and recall of the samples that TENT learned from under each selection rule, in each round."
        yield from _draw_shares(f"selection-{index}", title, caption, counted, "precision", "recall")
        caption = "Share of samples that lost confidence, and share of those that are wrong or unknown, in each round."
        yield from _draw_shares(f"rejected-{index}", title, caption, losing, "lost confidence", "wrong among those")


def _measure_selection(results: Results, prefix: str) -> pl.DataFrame:
    """Return shares over all samples of each complete round: `run`, `round`, and one column each.

    Those of what the method itself rejects, or with the prefix `crowd/` of what the paper's selection would reject. The
    counts of a domain are whole numbers, so rounding restores those of older archives, which hold shares only.
    """
    names = {"samples": "samples"} | {f"{prefix}{name}": name for name in ("rejected", "precision", "npv")}
    rounds = results.frames.runs.lazy().select("run", "rounds")
    chosen = results.frames.measures.filter(pl.col("measure").is_in(list(names))).join(rounds, on="run")
    value = {short: pl.col("value").filter(pl.col("measure") == name).first() for name, short in names.items()}
    visits = chosen.filter(pl.col("round") <= pl.col("rounds")).group_by("run", "round", "domain").agg(**value)
    selected, rejected, correct, wrong = map(pl.col, ("selected", "rejected", "correct", "wrong"))
    counts = visits.drop_nulls("rejected").with_columns((rejected * pl.col("samples")).round())
    counts = counts.with_columns(selected=pl.col("samples") - rejected)
    correctly, wrongly = pl.col("precision").fill_null(0) * selected, pl.col("npv").fill_null(0) * rejected
    sums = {"correct": correctly.round().sum(), "wrong": wrongly.round().sum()}
    totals = counts.group_by("run", "round").agg(selected.sum(), rejected.sum(), **sums)
    shares = {
        "precision": correct / selected,
        "recall": correct / (correct + rejected - wrong),
        "lost confidence": rejected / (selected + rejected),
        "wrong among those": wrong / rejected,
    }
    shown = {name: (100 * share).fill_nan(None) for name, share in shares.items()}
    return totals.select("run", "round", **shown).sort("run", "round").collect()


def _draw_shares(name: str, title: str, caption: str, frame: pl.DataFrame, *panels: str) -> Iterator[PaperFigure]:
    labels = frame["label"].unique(maintain_order=True)
    numbers = {label: {panel: frame.filter(label=label)[panel].to_list() for panel in panels} for label in labels}
    rule = pl.col("label").str.strip_prefix("tent+")  # so that each has a color of its own
    parts = [(f"{title}: {panel}", frame.select("round", label=rule, value=panel).drop_nulls()) for panel in panels]
    if numbers:
        yield PaperFigure(name, title, caption, numbers, partial(_draw_panels, line_chart, parts, y_title="%"))


def _draw_panels(
    draw: Callable[..., Any],
    panels: Iterable[tuple[str, pl.DataFrame]],
    **options: Any,  # noqa: ANN401
) -> alt.HConcatChart:
    """Draw charts with titles side by side."""
    charts = [draw(frame, title=title, is_static=True, width=400, **options) for title, frame in panels]
    return alt.HConcatChart(hconcat=charts, resolve={"scale": {"color": "independent", "strokeDash": "independent"}})


def scores(results: Results, round: int | None = None) -> Iterator[PaperFigure]:
    """Histograms of confidence and its change for correct, wrong and unknown samples, in one round or the last one."""
    candidates = [spec for spec in results.runs if "histograms" in spec.measures and results.rounds(spec)]
    titles = {spec: title for title, group in _group_by_stream(candidates) for spec in group}
    wanted = {spec: results.rounds(spec) if round is None else round for spec in titles}
    found = {spec: counts for spec in titles if (counts := _sum_histograms(results, spec, wanted[spec]))}
    if titles and not found:
        which = "the last round" if round is None else f"round {round}"
        raise InputError(
            f"Expected histograms of {which}, but no run has completed it and kept them. "
            "Archives keep histograms of the first and the last round only."
        )
    for index, (spec, counts) in enumerate(found.items(), start=1):
        last, title = wanted[spec], titles[spec]
        means = {score: results.per_round(spec, f"{n}/including/auroc")[last - 1] for score, n in _SCORES.items()}
        aurocs = {score: mean if math.isfinite(mean) else None for score, mean in means.items()}
        caption = f"{spec.method} in round {last}; AUROC of correct predictions, mean over domains."
        bins = {score: edges(score) for score in _SCORES}
        numbers = {"run": spec.name, "round": last, "auroc": aurocs, "edges": bins, "counts": counts}
        panels = [
            (f"{title}, AUROC {format_number(means[score])}", bin_shares(score, counts[score])) for score in counts
        ]
        yield PaperFigure(f"scores-{index}", title, caption, numbers, partial(_draw_panels, histogram, panels))


def _sum_histograms(results: Results, spec: Spec, round: int) -> dict[str, dict[str, list[int]]]:
    """Return the histograms of all domains of a round, added up; empty if it is incomplete or they were not kept."""
    frame = results.frames.histograms.filter(run=spec.name, round=round).collect()
    lists = dict(frame.group_by("measure").agg("bins").iter_rows())
    names = {score: {kind: f"histogram/{score}/{kind}" for kind in KINDS} for score in _SCORES}
    if round > results.rounds(spec) or len(lists.get(names["confidence"]["correct"], ())) < len(spec.domains):
        return {}
    return {
        score: {kind: [int(sum(bins)) for bins in zip(*lists[name], strict=True)] for kind, name in kinds.items()}
        for score, kinds in names.items()
    }


def gradients(results: Results) -> Iterator[PaperFigure]:
    """Mean cosine similarity between the gradients of samples, by class and prediction."""
    caption = "Mean cosine between gradients of samples of class j predicted as class i and of correct samples of i."
    specs = [spec for spec in results.runs if spec.task == "gradients" and results.rounds(spec)]
    for index, spec in enumerate(sorted(specs, key=lambda spec: spec.name), start=1):
        options, where = dict(spec.options), {"run": spec.name, "domain": ALL_DOMAINS}
        lists = dict(results.frames.histograms.filter(**where).select("measure", "bins").collect().iter_rows())
        means = dict(results.frames.measures.filter(**where).select("measure", "value").collect().iter_rows())
        classes = math.isqrt(len(lists["cosines"]))
        matrices = {
            name: [lists[name][start : start + classes] for start in range(0, classes**2, classes)]
            for name in ("sizes", "cosines")
        }
        numbers = {"run": spec.name, "options": options, "right": means["right"], "wrong": means["wrong"], **matrices}
        title = f"{spec.images}, {spec.model}, weight of {options['layer']}"
        cells = [
            (f"class {j}", f"as {i}", value) for j, row in enumerate(matrices["cosines"]) for i, value in enumerate(row)
        ]
        frame = pl.DataFrame(cells, schema={"class": pl.String, "as": pl.String, "value": pl.Float64}, orient="row")
        draw = partial(heatmap, frame, x="as", y="class", digits=2, legend="cosine", title=title)
        yield PaperFigure(f"gradients-{index}", title, caption, numbers, draw)


def curves(results: Results) -> Iterator[PaperFigure]:
    """The error or mean IoU of every method in each round: one figure per image set, one panel per setting."""
    runs = label_runs(results.frames.runs)
    read = (Spec.from_data(json.loads(text)) for text in runs["spec"])
    specs = [replace(spec, method="", options=(), seed=0, measures=(), unknown=None) for spec in read]
    streams = {spec.name: spec for spec in specs}
    runs = runs.with_columns(figure=pl.Series([spec.name for spec in specs], dtype=pl.String))
    shown = runs.filter(pl.col("rounds").max().over("figure") > 1)
    for index, ((name,), group) in enumerate(shown.group_by("figure", maintain_order=True), start=1):
        stream, is_scenes = streams[str(name)], "iou" in group["measures"][0]
        lines = per_round(label_measures(results.frames.measures, group), "mean_iou" if is_scenes else "error")
        longest = group.group_by("place", "label").agg(pl.col("rounds").max())
        reached = lines.join(longest, on=["place", "label"]).filter(pl.col("round") <= pl.col("rounds"))
        numbers: dict[str, dict[str, list[float]]] = {}
        # Rounded, as the order of a sum of floats is not fixed.
        ordered = reached.sort("place", "order", "round").with_columns(pl.col("value").round(9))
        for column, label, value in ordered.select("column", "label", "value").iter_rows():
            numbers.setdefault(column, {}).setdefault(label, []).append(value)
        domains = f"{len(stream.domains)} domains" if len(stream.domains) > 1 else stream.domains[0]
        seeds = max(lines["seeds"])
        bands = f" and up to {seeds} seeds; bands span the minimum and maximum over seeds" if seeds > 1 else ""
        caption = f"{'Mean IoU' if is_scenes else 'Error'} in each round, mean over {domains}{bands}."
        title = ", ".join([stream.images, stream.model, *distinguishing_fields(stream, streams.values())])
        kept, known = pl.col("label", "round", "value", "low", "high"), lines.sort("order")["label"]
        parts = [(str(column), part.select(kept)) for (column,), part in lines.group_by("column", maintain_order=True)]
        unit = "mIoU, %" if is_scenes else "error, %"
        styles = {"y_title": unit, "known": known.unique(maintain_order=True).to_list()}
        draw = partial(_draw_panels, line_chart, parts, **styles)
        yield PaperFigure(f"rounds-{index}", title, caption, numbers, draw)


ANALYSES: dict[str, Callable[..., Iterator[PaperFigure]]]
ANALYSES = {analysis.__name__: analysis for analysis in (selection, scores, gradients, curves)}
"""What `driftproof analyze` draws, by name."""


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
