"""The contents of the page: frames for its figures and tables, from labeled numbers."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from driftproof.bench.frames import HEALTH_STATES
from driftproof.bench.histograms import edges
from driftproof.optional import require
from driftproof.report.numbers import format_bytes, format_number
from driftproof.report.series import SERIES, per_domain, per_round

if TYPE_CHECKING:
    import polars as pl
else:
    pl = require("polars", "Reporting results", "'driftproof[report]'")

MAX_POINTS = 8_000
"""Points of all curves through domains; of longer streams, every n-th round is drawn."""

value, measure = pl.col("value"), pl.col("measure")


def primary_measure(numbers: "pl.DataFrame") -> tuple[str, str, bool]:
    """Return the measure that ranks methods, its title, and whether lower is better."""
    has_error = (numbers["measure"] == "error").any()
    return ("error", "error", True) if has_error else ("mean_iou", "mean IoU", False)


def health_events(numbers: "pl.DataFrame", at: str = "round") -> "pl.DataFrame":
    """Return what happened to a series at a round or domain: the first state that is not healthy, and guards' actions.

    Args:
        numbers: As `label_measures` returns them.
        at: Column that says where: `round` or `domain`.
    """
    bad = numbers.filter(measure.is_in(["health", "health/unhealthy"]) & (value > 0)).sort("round", "visit")
    states = dict(enumerate(HEALTH_STATES))
    worst = value.filter(measure == "health").max().fill_null(1).cast(pl.Int64)
    first = bad.group_by(SERIES, maintain_order=True).agg(pl.col(at).first(), worst)
    onsets = first.with_columns(event=value.replace_strict(states, default="", return_dtype=pl.String))
    acted = (
        numbers.filter(measure.str.starts_with("guard/") & (value > 0))
        .group_by(*SERIES, at, "measure")
        .agg(value.sum())
    )
    actions = acted.with_columns(event=pl.format("{} ×{}", measure.str.strip_prefix("guard/"), value.cast(pl.Int64)))
    events = pl.concat([frame.select(*SERIES, at, "event") for frame in (onsets, actions)])
    return events.group_by(*SERIES, at).agg(pl.col("event").sort().str.join(", "))


def headline_course(numbers: "pl.DataFrame") -> "pl.DataFrame":
    """Return each method against the source, round by round, or domain by domain where there is one round.

    Columns are `label`, `round` or `domain`, `value`, `difference` (to the source on the same settings; null without
    one) and `event`. Settings are averaged, in rounds that a method has reached on all of its settings.
    """
    name, _, _ = primary_measure(numbers)
    rounds = per_round(numbers, name)
    at = "round" if rounds.get_column("round").max() != 1 else "domain"
    shown = rounds.with_columns(visit=0) if at == "round" else per_domain(numbers, name)
    source = shown.filter(label="source").select("place", at, source="value")
    joined = shown.join(source, on=["place", at], how="left").join(
        health_events(numbers, at), on=[*SERIES, at], how="left"
    )
    several = joined["place"].n_unique() > 1
    event = pl.format("{}: {}", "column", "event") if several else pl.col("event")
    settings = pl.col("place").n_unique().over("label") if at == "round" else 1
    means = joined.with_columns(settings=settings, event=event).group_by("order", "label", at, maintain_order=True).agg(
        value.mean(), pl.col("settings").first(), pl.len(), pl.col("visit").min(), difference=(value - pl.col("source")).mean(),
        event=pl.when(pl.col("event").is_not_null().any()).then(pl.col("event").drop_nulls().str.join("; ")),
    )  # fmt: skip
    whole = means.filter(pl.col("len") >= pl.col("settings")).sort("order", "visit", *([at] if at == "round" else []))
    return whole.select("label", at, "value", "difference", "event")


def verdict(numbers: "pl.DataFrame") -> dict[str, Any]:
    """Return what the first sentence says: the best method, its number, the source's, and its health.

    The best method has the best mean over settings in the last round, among those that ran on the most settings.
    """
    name, title, is_lower_better = primary_measure(numbers)
    last = per_round(numbers, name).filter(pl.col("round") == pl.col("round").max().over("place"), value.is_not_null())
    means = last.group_by("order", "label").agg(value.mean(), pl.len()).sort("len", "order", descending=[True, False])
    ranked = means.filter(pl.col("len") == pl.col("len").max()).sort("value", descending=not is_lower_better)
    best, (source, *_) = ranked.row(0, named=True), [*means.filter(label="source")["value"], None]
    health = numbers.filter(measure == "health", pl.col("label") == best["label"])
    events = health_events(numbers.filter(~measure.str.starts_with("guard/"))).filter(label=best["label"]).sort("round")
    ends = health.filter(pl.col("round") == pl.col("rounds"))["value"].max()
    return {
        "title": title, "best": best["label"], "value": best["value"], "settings": best["len"],
        "rounds": last["round"].max(), "source": source, "difference": None if source is None else best["value"] - source,
        "adapts": best["label"] != "source", "is_lower_better": is_lower_better, "has_health": not health.is_empty(),
        "left": events["round"].min(), "end": None if ends is None else HEALTH_STATES[int(ends)],
    }  # fmt: skip


def result_table(numbers: "pl.DataFrame") -> tuple["pl.DataFrame", dict[str, tuple[str, str]]]:
    """Return the last number of each method (rows) on each setting (columns), and headings of the columns.

    Texts are `12.34 ±0.12 @7`: mean and deviation over seeds, and the round if others went further. A star leads the
    best number of a column's last round. `mean` is over settings, for methods that reached the last round of all.
    """
    name, _, is_lower_better = primary_measure(numbers)
    ends = per_round(numbers, name).filter(pl.col("round") == pl.col("round").max().over("place", "order"))
    ends = ends.with_columns(last=pl.col("round").max().over("place")).with_columns(
        done=pl.col("round") == pl.col("last")
    )
    best = value.filter(pl.col("done")).min() if is_lower_better else value.filter(pl.col("done")).max()
    ends = ends.with_columns(best=(value == best.over("place")) & pl.col("done"))
    texts = ends.with_columns(
        text=pl.Series([_format_cell(row) for row in ends.iter_rows(named=True)], dtype=pl.String)
    )
    table, headings = _pivot(texts, name)
    if len(headings) > 1:
        whole = ends.filter("done").group_by("label").agg(value.mean(), pl.len()).filter(pl.col("len") == len(headings))
        table = table.join(whole.select(method="label", mean="value"), on="method", how="left", maintain_order="left")
    return table, headings


def measure_table(numbers: "pl.DataFrame", names: Iterable[str], scale: float = 1.0) -> "pl.DataFrame":
    """Return measures (columns) of each method on each setting (rows), in the last round."""
    parts = [per_round(numbers, name).with_columns(measure=pl.lit(name)) for name in names]
    if not parts:
        return pl.DataFrame()
    ends = pl.concat(parts).filter(pl.col("round") == pl.col("round").max().over("place", "order"), value.is_not_null())
    on = [name for name in names if (ends["measure"] == name).any()]
    wide = ends.with_columns(value * scale).pivot(on="measure", on_columns=on, index=SERIES, values="value")
    return (
        wide.sort("place", "order").drop("place", "order").rename({"label": "method"}).select("method", "column", *on)
    )


def domain_course(numbers: "pl.DataFrame") -> "pl.DataFrame":
    """Return the primary measure through the stream: `position` counts domains, with their rounds and names.

    Streams of frames are drawn within each domain, where the measure of the frames seen so far was recorded.
    """
    name, _, _ = primary_measure(numbers)
    course = per_domain(numbers, name, last=False)
    keep = -(-course.height // MAX_POINTS)
    within = numbers.filter(measure.str.contains(r"^mean_iou@\d+$"))["measure"].unique().sort().to_list()
    if course["round"].max() == 1 and within:
        parts = (
            per_domain(numbers, each).with_columns(part=pl.lit(int(each.partition("@")[2]) / 100)) for each in within
        )
        course = pl.concat(parts).sort(*SERIES, "visit", "part")
    else:
        course = course.with_columns(part=pl.lit(1.0))
    count = (pl.col("visit").max() + 1).over("place")
    position = (pl.col("round") - 1) * count + pl.col("visit") + pl.col("part")
    return (
        course.filter((pl.col("round") - 1) % keep == 0).with_columns(position=position).drop("visit", "part", "order")
    )


def health_table(numbers: "pl.DataFrame") -> "pl.DataFrame":
    """Return one row per series that left the healthy state, on which guards acted, or with quarantined images."""
    rows = []
    for (column, label), part in numbers.group_by("column", "label", maintain_order=True):
        states, of = (
            part.filter(measure == "health").sort("round", "visit"),
            dict(part.group_by("measure").agg(value.sum()).rows()),
        )
        bad = states.join(
            part.filter(measure == "health/unhealthy"), on=["seed", "round", "domain"], how="left", suffix="_looks"
        )
        bad = bad.filter((value > 0) | (pl.col("value_looks") > 0))
        guards = [
            f"{name.removeprefix('guard/')} {count:.0f}"
            for name, count in sorted(of.items())
            if name.startswith("guard/")
        ]
        if not bad.is_empty() or guards or of.get("quarantined"):
            first, end = bad.head(1), states.filter(pl.col("round") == pl.col("rounds"))["value"].max()
            rows.append({
                "method": label, "column": column, "not healthy": f"{bad.height} of {states.height} domains" if bad.height else "never",
                "first": f"round {first['round'][0]}, {first['domain'][0]}" if bad.height else None,
                "worst at the end": HEALTH_STATES[int(end)] if end is not None else None,
                "guards, in batches": ", ".join(guards) or None, "quarantined images": int(of.get("quarantined") or 0) or None,
            })  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def cost_table(numbers: "pl.DataFrame") -> tuple["pl.DataFrame", dict[str, tuple[str, str]]]:
    """Return the time of a step and the peak memory of each method (rows) on each setting (columns), and headings."""
    time, peak = (value.filter(measure == name) for name in ("step/milliseconds", "peak_memory"))
    costs = numbers.group_by(SERIES).agg(time=time.mean(), peak=peak.max())
    texts = [
        f"{format_number(time)} ms, {format_bytes(peak)}" if time is not None else None
        for time, peak in costs.select("time", "peak").iter_rows()
    ]
    return _pivot(costs.with_columns(text=pl.Series(texts, dtype=pl.String)), "ms per step, peak memory")


def histogram_shares(histograms: "pl.DataFrame", runs: "pl.DataFrame") -> "pl.DataFrame":
    """Return the share of samples in each bin, for each kind, over the last round with histograms of each series."""
    named = histograms.join(runs.select("run", "rounds", "seed", *SERIES), on="run").filter(
        measure.str.starts_with("histogram/"), pl.col("round") <= pl.col("rounds")
    )
    last = named.filter(
        pl.col("round") == pl.col("round").max().over(SERIES), pl.col("seed") == pl.col("seed").min().over(SERIES)
    )
    parts = []
    for key, part in last.group_by(*SERIES, "round", "measure", maintain_order=True):
        score, kind = str(key[-1]).split("/")[1:]
        counts = [sum(column) for column in zip(*part["bins"].to_list(), strict=True)]
        bins, total = edges(score), sum(counts)
        parts += [
            {**dict(zip(SERIES, key, strict=False)), "round": key[-2], "score": score, "kind": kind, "low": low, "high": high, "share": 100 * count / total}
            for low, high, count in zip(bins, bins[1:], counts, strict=False) if total
        ]  # fmt: skip
    return pl.DataFrame(parts, infer_schema_length=None)


def methods_table(runs: "pl.DataFrame") -> "pl.DataFrame":
    """Return options and components of each method; the settings only where they matter."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for run in runs.sort("order", "place").iter_rows(named=True):
        options = ", ".join(f"{name} {_format_option(option)}" for name, option in json.loads(run["options"]).items())
        components = json.loads(run["protocol"]).items()
        parts = "; ".join(f"{axis.replace('_', ' ')} {part}" for axis, part in components if part != "None")
        rows.setdefault((run["label"], options, parts), []).append(run["column"])
    labels = [label for label, _, _ in rows]
    return pl.DataFrame([
        {"method": label, "on": "everything" if labels.count(label) == 1 else "; ".join(dict.fromkeys(columns)),
         "hyper-parameters": options or None, "components": parts}
        for (label, options, parts), columns in rows.items()
    ])  # fmt: skip


def settings_table(runs: "pl.DataFrame") -> "pl.DataFrame":
    """Return what was streamed in each setting."""
    first = ("stream", "unknown", "model", "severity", "batch_size", "limit", "domains")
    grouped = runs.group_by("place", "column").agg(
        *(pl.col(name).first() for name in first), pl.col("seed").unique().sort(), pl.col("rounds").max()
    )
    rows = (
        grouped.sort("place")
        .drop("place")
        .rename({"column": "setting", "seed": "seeds", "model": "network", "batch_size": "batch"})
    )
    joined = [pl.col(name).list.eval(pl.element().cast(pl.String)).list.join(", ") for name in ("domains", "seeds")]
    return rows.with_columns(*joined, limit=pl.col("limit").cast(pl.String).fill_null("all images"))


def _pivot(texts: "pl.DataFrame", title: str) -> tuple["pl.DataFrame", dict[str, tuple[str, str]]]:
    """Return texts by method and setting, and for each column its stream and what else distinguishes it."""
    columns = texts.sort("place")["column"].unique(maintain_order=True).to_list()
    table = texts.pivot(on="column", on_columns=columns, index=["order", "label"], values="text").sort("order")
    split = {column: column.partition(", ") for column in columns}
    headings = {column: (stream, rest or title) for column, (stream, _, rest) in split.items()}
    return table.drop("order").rename({"label": "method"}), headings


def _format_cell(row: dict[str, Any]) -> str | None:
    if row["value"] is None:
        return None
    deviation = "" if row["deviation"] is None else f" ±{format_number(row['deviation'], 2)}"
    early = "" if row["done"] else f" @{row['round']}"
    return f"{'*' * row['best']}{format_number(row['value'], 2)}{deviation}{early}"


def _format_option(option: object) -> str:
    return f"{option:g}" if isinstance(option, float) else str(option)
