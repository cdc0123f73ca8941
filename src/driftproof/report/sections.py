"""The contents of the page: frames for its figures and tables, from numbers as `label_measures` returns them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from driftproof.bench.frames import FROM_CONDITIONS, HEALTH_STATES
from driftproof.bench.histograms import edges
from driftproof.bench.libraries import pl
from driftproof.report.series import SERIES, per_domain, per_round
from driftproof.report.text import format_number

MAX_POINTS = 6_000
"""Points of all curves through domains; of longer streams, every n-th round is drawn."""

Headings = dict[str, tuple[str, str]]
"""For each column of a table, the heading over several of them and its own."""

_HEALTH = "health|health/unhealthy"
_STATES = dict(enumerate(HEALTH_STATES))
_value, _measure, _round = pl.col("value"), pl.col("measure"), pl.col("round")
_count = _value.cast(pl.Int64)


def primary_measure(numbers: pl.DataFrame) -> tuple[str, str, bool]:
    """Return the measure that ranks methods, its title, and whether lower is better."""
    has_error = (numbers["measure"] == "error").any()
    return ("error", "error", True) if has_error else ("mean_iou", "mean IoU", False)


def split_by_measure(numbers: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the numbers of streams of images, and those of streams of scenes: their primary measures differ."""
    has_error = pl.col("place").is_in(numbers.filter(_measure == "error")["place"].unique().to_list())
    return [part for part in (numbers.filter(has_error), numbers.filter(~has_error)) if part.height]


def health_events(numbers: pl.DataFrame, at: str = "round") -> pl.DataFrame:
    """Return what happened to a series at a round or domain: the first unhealthy state, and guards' actions."""
    told = _pick(numbers, f"{_HEALTH}|guard/.*").filter(_value > 0).sort("round", "visit")
    is_guard, worst = _measure.str.starts_with("guard/"), _value.filter(_measure == "health").max().fill_null(1)
    first = told.filter(~is_guard).group_by(SERIES, maintain_order=True).agg(pl.col(at).first(), worst)
    onsets = first.with_columns(event=_count.replace_strict(_STATES, return_dtype=pl.String))
    actions = told.filter(is_guard).group_by(*SERIES, at, "measure").agg(_value.sum())
    texts = actions.with_columns(event=pl.format("{} ×{}", _measure.str.strip_prefix("guard/"), _count))
    events = pl.concat([frame.select(*SERIES, at, "event") for frame in (onsets, texts)])
    return events.group_by(*SERIES, at).agg(pl.col("event").sort().str.join(", "))


def main_settings(numbers: pl.DataFrame) -> pl.DataFrame:
    """Return the numbers of the most methods on the most settings, each method on all of them: their means compare."""
    measured = numbers.filter(_measure == primary_measure(numbers)[0]).group_by("label").agg(pl.col("place").unique())
    sets = {label: frozenset(places) for label, places in measured.iter_rows()}
    shared = {each: [label for label, places in sets.items() if each <= places] for each in sets.values()}
    best, labels = max(
        sorted(shared.items(), key=lambda item: sorted(item[0])),
        key=lambda item: (len(item[0]) * len(item[1]), len(item[0])),
    )
    return numbers.filter(pl.col("place").is_in(list(best)), pl.col("label").is_in(labels))


def headline_course(numbers: pl.DataFrame) -> pl.DataFrame:
    """Return each method against the source, round by round, or domain by domain where there is one round.

    Columns are `label`, `round` or `domain`, `value`, `difference` (to the source; null without one) and `event`. The
    main settings are averaged, in rounds that a method has reached on all of them.
    """
    name, _, _ = primary_measure(numbers)
    rounds = per_round(numbers, name).with_columns(visit=0)
    at, shown = ("round", rounds) if rounds["round"].max() != 1 else ("domain", per_domain(numbers, name))
    source = shown.filter(label="source").select("place", at, source="value")
    joined = shown.join(source, on=["place", at], how="left")
    joined = joined.join(health_events(numbers, at), on=[*SERIES, at], how="left")
    settings, event = joined["place"].n_unique(), pl.col("event")
    joined = joined.with_columns(event=pl.format("{}: {}", "column", "event") if settings > 1 else event)
    means = joined.group_by("order", "label", at).agg(
        _value.mean(), pl.len(), pl.col("visit").min(), difference=(_value - pl.col("source")).mean(),
        event=pl.when(event.is_not_null().any()).then(event.drop_nulls().sort().str.join("; ")),
    )  # fmt: skip
    whole = means.filter(pl.col("len") == settings) if at == "round" else means
    return whole.sort("order", "visit", at).select("label", at, "value", "difference", "event")


def verdict(numbers: pl.DataFrame) -> dict[str, Any]:
    """Return what the first sentence says: the best method in the last round of the main settings, and its health."""
    name, _, is_lower_better = primary_measure(numbers)
    last = per_round(numbers, name).filter(_round == _round.max().over("place"), _value.is_not_null())
    means = last.group_by("order", "label").agg(_value.mean(), pl.len()).sort("order")
    finished = means.filter(pl.col("len") == pl.col("len").max())
    best = finished.sort("value", descending=not is_lower_better, maintain_order=True).row(0, named=True)
    source = next(iter(finished.filter(label="source")["value"]), None)
    health = _pick(numbers.filter(pl.col("label") == best["label"]), _HEALTH)
    end = health.filter(_round == pl.col("rounds"), _measure == "health")["value"].max()
    return {
        "best": best["label"], "value": best["value"], "source": source, "adapts": best["label"] != "source",
        "is_lower_better": is_lower_better, "settings": last["column"].unique().sort().to_list(),
        "rounds": last["round"].unique().sort().to_list(), "has_health": not health.is_empty(),
        "left": health_events(health)["round"].min(), "end": None if end is None else _STATES[int(end)],  # type: ignore[arg-type]
    }  # fmt: skip


def result_table(numbers: pl.DataFrame) -> tuple[pl.DataFrame, Headings]:
    """Return the last number of each method (rows) on each setting (columns), and headings of the columns.

    Texts are `12.34 ±0.12 @7`: mean and deviation over seeds, and the round if others went further. A star leads the
    best number of a column's last round. `mean` is over settings, for methods that reached the last round of all.
    """
    name, title, is_lower_better = primary_measure(numbers)
    ends = per_round(numbers, name).filter(_round == _round.max().over("place", "order"), _value.is_not_null())
    ends = ends.with_columns(done=_round == _round.max().over("place"))
    done = _value.filter(pl.col("done"))
    best = (done.min() if is_lower_better else done.max()).over("place")
    ends = ends.with_columns(best=(_value == best) & pl.col("done"))
    table, headings = _pivot(ends, [_format_cell(row) for row in ends.iter_rows(named=True)], title)
    if len(headings) > 1:
        whole = ends.filter("done").group_by("label").agg(_value.mean(), pl.len()).filter(len=len(headings))
        table = table.join(whole.select(method="label", mean="value"), on="method", how="left", maintain_order="left")
    return table, headings


def measure_table(numbers: pl.DataFrame, pattern: str, scale: float = 1.0) -> pl.DataFrame:
    """Return measures (columns) of each method on each setting (rows), in the last round."""
    found = per_round(numbers, *_names(numbers, pattern)).filter(_value.is_not_null())
    ends = found.filter(_round == _round.max().over("place", "order")).with_columns(_value * scale)
    wide = ends.sort("measure").pivot(on="measure", index=SERIES, values="value").sort("place", "order")
    return wide.rename({"label": "method"}).select("method", pl.exclude("method", "place", "order"))


def domain_course(numbers: pl.DataFrame) -> pl.DataFrame:
    """Return the primary measure through the stream: `position` counts domains, with their rounds and names.

    Streams of one round are drawn within each domain, where the measure of the frames seen so far was recorded.
    """
    name, _, _ = primary_measure(numbers)
    course = per_domain(numbers, name, last=False).with_columns(part=pl.lit(1.0))
    keep = -(-course.height // MAX_POINTS)
    within = _names(numbers, r"mean_iou@\d+")
    if course["round"].max() == 1 and within:
        parts = {each: int(each.partition("@")[2]) / 100 for each in within}
        found = (per_domain(numbers, each).with_columns(part=pl.lit(part)) for each, part in parts.items())
        course = pl.concat(found).sort(*SERIES, "visit", "part")
    before = (_round - 1) * (pl.col("visit").max() + 1).over("place") + pl.col("visit")
    shown = course.filter((_round - 1) % keep == 0).with_columns(position=before + pl.col("part"))
    return shown.select("place", "column", "label", "position", "value", "round", "domain")


def health_table(numbers: pl.DataFrame) -> pl.DataFrame:
    """Return where a series first left the healthy state, its state at the end, and how often guards acted."""
    told = _pick(numbers, f"{_HEALTH}|guard/.*|quarantined").sort("round", "visit")
    is_state = _measure.is_in(_HEALTH.split("|"))
    at_end = _value.filter(_measure == "health", _round == pl.col("rounds")).max().cast(pl.Int64)
    first = pl.format("round {}, {}", "round", "domain").filter(is_state & (_value > 0)).first()
    end = at_end.replace_strict(_STATES, return_dtype=pl.String)
    states = told.group_by(SERIES).agg(first.alias("first not healthy"), end.alias("at the end"))
    acts = told.filter(~is_state).with_columns(_measure.str.strip_prefix("guard/"), _count)
    sums = acts.sort("measure").pivot(on="measure", index=SERIES, values="value", aggregate_function="sum")
    table = states.join(sums, on=SERIES, how="left").sort("place", "order").drop("place", "order")
    found = [pl.col("first not healthy").is_not_null(), *(pl.col(name) > 0 for name in sums.columns[len(SERIES) :])]
    return table.filter(pl.any_horizontal(found)).select(pl.col("label").alias("method"), pl.exclude("label"))


def cost_table(numbers: pl.DataFrame) -> tuple[pl.DataFrame, Headings]:
    """Return the time of a step and the peak memory of each method (rows) on each setting (columns), and headings."""
    _, peak, step = (_value.filter(_measure == name) for name in FROM_CONDITIONS)
    costs = _pick(numbers, "|".join(FROM_CONDITIONS)).group_by(SERIES).agg(step=step.mean(), peak=peak.max())
    known = costs.filter(pl.col("step").is_not_null())
    texts = [
        f"{format_number(step)} ms, {'–' if peak is None else format_number(peak / 2**20, 0)} MiB"
        for step, peak in known.select("step", "peak").rows()
    ]
    return _pivot(known, texts, "time, memory")


def histogram_shares(histograms: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Return the shares of bins in the last round with histograms of each series; `column` is a title."""
    names = runs.select("run", "rounds", "seed", *SERIES)
    scores = histograms.filter(_measure.str.starts_with("histogram/"))
    known = scores.join(names, on="run", maintain_order="left").filter(_round <= pl.col("rounds"))
    last = known.filter(_round == _round.max().over(SERIES), pl.col("seed") == pl.col("seed").min().over(SERIES))
    parts = []
    for (_, column, _, label, at, name), part in last.group_by(*SERIES, "round", "measure", maintain_order=True):
        _, score, kind = str(name).split("/")
        shares = bin_shares(score, {kind: [sum(bins) for bins in zip(*part["bins"], strict=True)]})
        parts.append(shares.with_columns(column=pl.lit(f"{score.replace('_', ' ')} of {label}, {column}, round {at}")))
    return pl.concat(parts) if parts else pl.DataFrame()


def bin_shares(score: str, counts: Mapping[str, Sequence[float]]) -> pl.DataFrame:
    """Return a score's counts by kind and bin as shares: columns `score`, `kind`, `low`, `high` and `share`."""
    rows = [
        (score, kind, low, high, 100 * count / sum(bins))
        for kind, bins in counts.items()
        for low, high, count in (zip(edges(score), edges(score)[1:], bins, strict=False) if any(bins) else ())
    ]
    types = {"score": pl.String, "kind": pl.String, "low": pl.Float64, "high": pl.Float64, "share": pl.Float64}
    return pl.DataFrame(rows, types, orient="row")


def methods_table(runs: pl.DataFrame) -> pl.DataFrame:
    """Return options and components of each method, and on which settings it has them."""
    options = pl.col("options").str.replace_all('":', " ").str.replace_all(',"', ", ").str.replace_all('[{}"]', "")
    parts = pl.col("protocol").str.replace_all(r'"\w+":"None",?', "").str.replace_all('":"', " ")
    texts = {"hyper-parameters": options, "components": parts.str.replace_all('","', "; ").str.replace_all('[{}"]', "")}
    grouped = runs.sort("order", "place").with_columns(**texts).group_by("label", *texts, maintain_order=True)
    columns, settings = pl.col("column").unique(maintain_order=True), runs["column"].n_unique()
    where = pl.when(columns.len() == settings).then(pl.lit("everything")).otherwise(columns.str.join("; "))
    return grouped.agg(on=where).rename({"label": "method"})


def settings_table(runs: pl.DataFrame) -> pl.DataFrame:
    """Return what was streamed in each setting."""
    first = pl.col("stream", "unknown", "model", "severity", "batch_size", "limit", "domains").first()
    seeds, rounds = pl.col("seed").unique().sort(), pl.col("rounds").max()
    grouped = runs.group_by("place", "column").agg(first, seeds=seeds, rounds=rounds)
    lists = pl.col("domains", "seeds").cast(pl.List(pl.String)).list.join(", ")
    table = grouped.sort("place").with_columns(lists, limit=pl.col("limit").cast(pl.String).fill_null("all images"))
    return table.drop("place").rename({"column": "setting", "model": "network", "batch_size": "batch"})


def _names(numbers: pl.DataFrame, pattern: str) -> list[str]:
    return sorted(name for name in numbers["measure"].unique() if re.fullmatch(pattern, name))


def _pick(numbers: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the numbers of measures that match a pattern, with names as text."""
    chosen = numbers.filter(_measure.is_in(_names(numbers, pattern)))
    return chosen.with_columns(pl.col(pl.Enum, pl.Categorical).cast(pl.String))


def _pivot(frame: pl.DataFrame, texts: list[str], title: str) -> tuple[pl.DataFrame, Headings]:
    """Return texts by method and setting, and for each column its stream and what else distinguishes it."""
    named = frame.with_columns(text=pl.Series(texts, dtype=pl.String)).sort("place")
    table = named.pivot(on="column", index=["order", "label"], values="text").sort("order").drop("order")
    split = {column: column.partition(", ") for column in table.columns[1:]}
    return table.rename({"label": "method"}), {name: (head, rest or title) for name, (head, _, rest) in split.items()}


def _format_cell(row: dict[str, Any]) -> str:
    deviation = "" if row["deviation"] is None else f" ±{format_number(row['deviation'], 2)}"
    early = "" if row["done"] else f" @{row['round']}"
    return f"{'*' * row['best']}{format_number(row['value'], 2)}{deviation}{early}"
