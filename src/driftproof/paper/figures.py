"""The paper's figures on selection, scores and gradients, and curves over rounds: their numbers and their charts."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from driftproof.bench.gradients import ALL_DOMAINS
from driftproof.bench.histograms import KINDS, edges
from driftproof.bench.results import Results
from driftproof.bench.spec import Spec, distinguishing_fields
from driftproof.errors import InputError
from driftproof.optional import require
from driftproof.paper.suites import suite
from driftproof.report.figures import heatmap, histogram, line_chart, to_spec
from driftproof.report.numbers import format_number
from driftproof.report.series import label_measures, label_runs, per_round

if TYPE_CHECKING:
    import altair as alt
    import polars as pl
else:
    alt, pl = (require(name, "Drawing figures", "'driftproof[report]'") for name in ("altair", "polars"))

__all__ = ["ANALYSES", "PaperFigure"]

_SCORES = {"confidence": "msp", "confidence_difference": "confidence_difference"}
"""Scores with histograms, and the names of their AUROCs."""

_QUALITY = {"": ("precision", "recall"), "crowd/": ("lost confidence", "wrong among those")}
_CAPTIONS = {
    "": "Precision and recall of the samples that TENT learned from under each selection rule, in each round.",
    "crowd/": "Share of samples that lost confidence, and share of those that are wrong or unknown, in each round.",
}


@dataclass(frozen=True)
class PaperFigure:
    """One figure.

    Attributes:
        name: Of its files.
        title: Which runs it shows.
        caption: What it shows.
        numbers: The numbers it shows, for JSON.
        draw: Draws it.
    """

    name: str
    title: str
    caption: str
    numbers: dict[str, Any]
    draw: Callable[[], "alt.TopLevelMixin"]


def selection(results: Results) -> Iterator[PaperFigure]:
    """Precision and recall of TENT under each selection rule, and how many samples lose confidence."""
    rules = list(suite("rules").specs())
    methods = dict.fromkeys(spec.method for spec in rules)
    groups = _group_by_stream(run for spec in rules for run in results.seeds(spec))
    for prefix, name in (("", "selection"), ("crowd/", "rejected")):
        quality = _count_selected(results, prefix)
        for index, (title, specs) in enumerate(groups, start=1):
            ran = {spec.name: spec.method for spec in specs}
            labels = pl.DataFrame({"run": list(ran), "label": list(ran.values())}, schema=_schema("run", "label"))
            frame = labels.join(quality, on="run", maintain_order="left")
            counted = set(frame["label"])
            caption = _CAPTIONS[prefix]
            if not prefix:
                caption += _list_names("Not run", [method for method in methods if method not in ran.values()])
                caption += _list_names("Not counted", [method for method in ran.values() if method not in counted])
            if counted:
                yield _make_line_figure(f"{name}-{index}", title, caption, frame, _QUALITY[prefix])


def _count_selected(results: Results, prefix: str) -> "pl.DataFrame":
    """Return precision and recall of what was selected, over all samples of each complete round.

    The counts of a domain are whole numbers, so rounding restores those of older archives, which hold shares only.
    """
    parts = {"samples": "samples", **{f"{prefix}{name}": name for name in ("rejected", "precision", "npv")}}
    chosen = results.frames.measures.filter(pl.col("measure").is_in(list(parts))).drop("count").collect()
    rounds = results.frames.runs.select("run", "rounds")
    wide = chosen.with_columns(pl.col("measure").replace(parts)).pivot("measure", index=["run", "round", "domain"])
    wide = wide.join(rounds, on="run").filter(pl.col("round") <= pl.col("rounds"))
    if not {"rejected", "precision", "npv"} <= set(wide.columns):
        return pl.DataFrame(schema=_schema("run", "round", *_QUALITY[prefix]))
    rejected = (pl.col("rejected") * pl.col("samples")).round()
    counts = wide.filter(pl.col("rejected").is_not_null()).select(
        "run", "round", rejected=rejected, selected=pl.col("samples") - rejected,
        correct=(pl.col("precision").fill_null(0) * (pl.col("samples") - rejected)).round(),
        wrong=(pl.col("npv").fill_null(0) * rejected).round(),
    ).group_by("run", "round").sum()  # fmt: skip
    correct, wrong, all_rejected = pl.col("correct"), pl.col("wrong"), pl.col("rejected")
    shares = (
        (correct / pl.col("selected"), correct / (correct + all_rejected - wrong))
        if not prefix
        else (all_rejected / (pl.col("selected") + all_rejected), wrong / all_rejected)
    )
    named = {label: 100 * share for label, share in zip(_QUALITY[prefix], shares, strict=True)}
    return counts.select("run", "round", **named).sort("run", "round")


def _make_line_figure(
    name: str, title: str, caption: str, frame: "pl.DataFrame", panels: Sequence[str], y_title: str = "%"
) -> PaperFigure:
    labels = frame["label"].unique(maintain_order=True)
    numbers = {
        label: {panel: _to_json(frame.filter(label=label)[panel].to_list()) for panel in panels} for label in labels
    }
    return PaperFigure(name, title, caption, numbers, partial(_draw_panels, title, frame, panels, y_title))


def _draw_panels(title: str, frame: "pl.DataFrame", panels: Sequence[str], y_title: str) -> "alt.TopLevelMixin":
    rule = pl.col("label").str.strip_prefix("tent+")  # so that each has a color of its own
    shown = {panel: frame.select("round", label=rule, value=panel).drop_nulls() for panel in panels}
    charts = [line_chart(part, title=f"{title}: {panel}", y_title=y_title, width=400) for panel, part in shown.items()]
    return _put_side_by_side(charts)


def scores(results: Results, round: int | None = None) -> Iterator[PaperFigure]:
    """Histograms of confidence and its change for correct, wrong and unknown samples in one round.

    Args:
        results: The results folder.
        round: The round; None for the last complete one. Runs without it are left out and named in the caption.
    """
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
    left_out = _list_names("Left out, without histograms of the round", [s.name for s in titles if s not in found])
    for index, (spec, counts) in enumerate(found.items(), start=1):
        aurocs = {
            score: results.per_round(spec, f"{metric}/including/auroc")[wanted[spec] - 1]
            for score, metric in _SCORES.items()
        }
        caption = f"{spec.method} in round {wanted[spec]}; AUROC of correct predictions, mean over domains.{left_out}"
        bins = {score: edges(score) for score in _SCORES}
        numbers = {"run": spec.name, "round": wanted[spec], "auroc": aurocs, "edges": bins, "counts": counts}
        draw = partial(_draw_histograms, titles[spec], aurocs, counts)
        yield PaperFigure(f"scores-{index}", titles[spec], caption, _to_json(numbers), draw)


def _sum_histograms(results: Results, spec: Spec, round: int) -> dict[str, dict[str, list[int]]]:
    """Return the histograms of all domains of a round, added up; empty if it is incomplete or they were not kept."""
    frame = results.frames.histograms.filter(run=spec.name, round=round).collect()
    names = {score: {kind: f"histogram/{score}/{kind}" for kind in KINDS} for score in _SCORES}
    kept = frame.filter(measure=names["confidence"]["correct"]).height == len(spec.domains)
    if not kept or round > results.rounds(spec):
        return {}
    lists = dict(frame.group_by("measure").agg("bins").iter_rows())
    return {
        score: {kind: [int(sum(bins)) for bins in zip(*lists[name], strict=True)] for kind, name in kinds.items()}
        for score, kinds in names.items()
    }


def _draw_histograms(
    title: str, aurocs: dict[str, float], counts: dict[str, dict[str, list[int]]]
) -> "alt.TopLevelMixin":
    charts = []
    for score, kinds in counts.items():
        bounds = edges(score)
        rows = [
            (score, kind, low, high, 100 * count / sum(bins))
            for kind, bins in kinds.items()
            if any(bins)
            for low, high, count in zip(bounds, bounds[1:], bins, strict=False)
        ]
        frame = pl.DataFrame(rows, schema=["score", "kind", "low", "high", "share"], orient="row")
        charts.append(histogram(frame, title=f"{title}, AUROC {format_number(aurocs[score])}", width=400))
    return _put_side_by_side(charts)


def gradients(results: Results) -> Iterator[PaperFigure]:
    """Mean cosine similarity between the gradients of samples, by class and prediction."""
    caption = "Mean cosine between gradients of samples of class j predicted as class i and of correct samples of i."
    specs = [spec for spec in results.runs if spec.task == "gradients" and results.rounds(spec)]
    for index, spec in enumerate(sorted(specs, key=lambda spec: spec.name), start=1):
        options, where = dict(spec.options), {"run": spec.name, "domain": ALL_DOMAINS}
        lists = dict(results.frames.histograms.filter(**where).select("measure", "bins").collect().iter_rows())
        means = dict(results.frames.measures.filter(**where).select("measure", "value").collect().iter_rows())
        classes = math.isqrt(len(lists["cosines"]))
        matrices = {name: _to_rows(lists[name], classes) for name in ("sizes", "cosines")}
        numbers = {"run": spec.name, "options": options, "right": means["right"], "wrong": means["wrong"], **matrices}
        title = f"{spec.images}, {spec.model}, weight of {options['layer']}"
        draw = partial(_draw_matrix, title, matrices["cosines"])
        yield PaperFigure(f"gradients-{index}", title, caption, _to_json(numbers), draw)


def _to_rows(flat: Sequence[Any], classes: int) -> list[list[Any]]:
    return [list(flat[start : start + classes]) for start in range(0, len(flat), classes)]


def _draw_matrix(title: str, cosines: Sequence[Sequence[float]]) -> "alt.TopLevelMixin":
    rows = [(f"class {j}", f"as {i}", value) for j, line in enumerate(cosines) for i, value in enumerate(line)]
    frame = pl.DataFrame(rows, schema={"class": pl.String, "predicted": pl.String, "value": pl.Float64}, orient="row")
    return heatmap(frame, x="predicted", y="class", digits=2, legend="cosine", title=title)


def curves(results: Results) -> Iterator[PaperFigure]:
    """The error or mean IoU of every method in each round: one figure per image set, one panel per setting."""
    runs = label_runs(results.frames.runs)
    specs = [
        replace(_read_spec(text), method="", options=(), seed=0, measures=(), unknown=None) for text in runs["spec"]
    ]
    streams = {spec.name: spec for spec in specs}
    runs = runs.with_columns(figure=pl.Series([spec.name for spec in specs], dtype=pl.String))
    shown = runs.filter(pl.col("rounds").max().over("figure") > 1)
    for index, ((name,), group) in enumerate(shown.group_by("figure", maintain_order=True), start=1):
        stream, is_scenes = streams[str(name)], "iou" in group["measures"][0]
        lines = per_round(label_measures(results.frames.measures, group), "mean_iou" if is_scenes else "error")
        longest = group.group_by("place", "label").agg(pl.col("rounds").max(), seeds=pl.len())
        reached = lines.drop("seeds").join(longest, on=["place", "label"]).filter(pl.col("round") <= pl.col("rounds"))
        numbers: dict[str, dict[str, list[float]]] = {}
        for column, label, value in (
            reached.sort("place", "order", "round").select("column", "label", "value").iter_rows()
        ):
            numbers.setdefault(column, {}).setdefault(label, []).append(value)
        domains = f"{len(stream.domains)} domains" if len(stream.domains) > 1 else stream.domains[0]
        seeds = max(longest["seeds"])
        bands = f" and up to {seeds} seeds; bands span the minimum and maximum over seeds" if seeds > 1 else ""
        caption = f"{'Mean IoU' if is_scenes else 'Error'} in each round, mean over {domains}{bands}."
        title = ", ".join([stream.images, stream.model, *distinguishing_fields(stream, streams.values())])
        draw = partial(_draw_curves, lines, "mIoU, %" if is_scenes else "error, %")
        yield PaperFigure(f"rounds-{index}", title, caption, _to_json(numbers), draw)


def _read_spec(text: str) -> Spec:
    return Spec.from_data(json.loads(text))


def _draw_curves(lines: "pl.DataFrame", y_title: str) -> "alt.TopLevelMixin":
    kept, known = (
        ["label", "round", "value", "low", "high"],
        lines.sort("order")["label"].unique(maintain_order=True).to_list(),
    )
    charts = [
        line_chart(part.select(kept), title=str(column), y_title=y_title, width=400, known=known)
        for (column,), part in lines.group_by("column", maintain_order=True)
    ]
    return _put_side_by_side(charts)


ANALYSES: dict[str, Callable[..., Iterator[PaperFigure]]] = {
    "selection": selection,
    "scores": scores,
    "gradients": gradients,
    "curves": curves,
}
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


def _put_side_by_side(charts: Iterable["alt.TopLevelMixin"]) -> "alt.TopLevelMixin":
    panels = [_drop_interaction(to_spec(chart)) for chart in charts]
    shared = {"color": "independent", "strokeDash": "independent"}
    return alt.HConcatChart.from_dict({"hconcat": panels, "resolve": {"scale": shared}})


def _drop_interaction(spec: Any) -> Any:  # noqa: ANN401  # any part of a chart
    """Show a chart as it is before anyone selects anything: charts side by side cannot share names of selections."""
    if isinstance(spec, list):
        return [_drop_interaction(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    condition = spec.get("condition", {})
    if isinstance(condition, dict) and "param" in condition:
        return {"value": condition["value"] if condition.get("empty", True) else spec["value"]}
    kept = {key: _drop_interaction(part) for key, part in spec.items() if key not in ("params", "$schema")}
    return kept | {"columns": 3} if isinstance(kept.get("columns"), dict) else kept  # of legends, by the chart's width


def _list_names(label: str, names: Sequence[str]) -> str:
    return f" {label}: {', '.join(names)}." if names else ""


def _schema(*names: str) -> dict[str, Any]:
    return {name: pl.String if name in ("run", "label") else pl.Float64 for name in names}


def _to_json(value: Any) -> Any:  # noqa: ANN401  # any JSON value
    """Replace NaN and infinity by None."""
    if isinstance(value, dict):
        return {key: _to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
