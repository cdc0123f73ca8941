"""Series of a report: runs grouped by method and setting, and their means over domains and seeds."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from driftproof.bench.methods import METHODS
from driftproof.bench.spec import Spec, distinguishing_fields
from driftproof.optional import require

if TYPE_CHECKING:
    import polars as pl
else:
    pl = require("polars", "Reporting results", "'driftproof[report]'")

__all__ = ["SERIES", "label_measures", "label_runs", "method_order", "per_domain", "per_round"]

_SYMBOLS = {"epsilon": "ε", "mean_entropy": "λ_max"}
SERIES = ["place", "column", "order", "label"]
"""Columns that name a series and sort it."""


def label_runs(runs: "pl.DataFrame") -> "pl.DataFrame":
    """Name the method and the setting of every run of a stream that has a complete round.

    Adds `label` (the method, with the options in which its runs on a setting differ) and its `order` (that of the
    registry, a method before the same one with a selection), `column` (the setting) and its `place`, and `stateless`
    (every round equals the first). Of runs with the same label, column and seed, the longest stays: they differ in
    their measures only.

    Args:
        runs: As `driftproof.bench.load_runs` returns them.
    """
    runs = runs.filter((pl.col("task") == "stream") & (pl.col("rounds") > 0))
    specs = [Spec.from_data(json.loads(text)) for text in runs["spec"]]
    streams = sorted({_stream_of(spec) for spec in specs}, key=_stream_order)
    places = {stream: place for place, stream in enumerate(streams)}
    names = dict(_name_methods(specs))
    order = sorted({(method_order(spec.method), name) for spec, name in names.items()})
    orders = {name: position for position, (_, name) in enumerate(order)}
    columns = _make_unique([_name_stream(stream, streams) for stream in streams])
    new = {
        "label": pl.Series([names[spec] for spec in specs], dtype=pl.String),
        "order": pl.Series([orders[names[spec]] for spec in specs], dtype=pl.Int64),
        "column": pl.Series([columns[places[_stream_of(spec)]] for spec in specs], dtype=pl.String),
        "place": pl.Series([places[_stream_of(spec)] for spec in specs], dtype=pl.Int64),
        "stateless": pl.Series([_is_stateless(json.loads(text)) for text in runs["protocol"]], dtype=pl.Boolean),
    }
    longest = runs.with_columns(**new).sort("rounds", descending=True, maintain_order=True)
    return longest.unique(["place", "order", "seed"], keep="first").sort("place", "order", "seed")


def label_measures(measures: "pl.DataFrame | pl.LazyFrame", runs: "pl.DataFrame", wanted: str = ".*") -> "pl.DataFrame":
    """Join the numbers of complete rounds with the labels of their runs, and `visit`, the domain's place in a round.

    Args:
        measures: Columns `run`, `round`, `domain`, `measure`, `value` and `count`; others are dropped.
        runs: As `label_runs` returns them.
        wanted: Pattern of the names of measures.
    """
    text, small = pl.Enum, pl.Int32
    names = runs.lazy().select("run", *SERIES, "seed", "stateless", "rounds", domain="domains")
    names = names.with_columns(visit=pl.int_ranges(0, pl.col("domain").list.len())).explode("domain", "visit")
    names = names.with_columns(
        pl.col("label").cast(text(runs["label"].unique())), pl.col("column").cast(text(runs["column"].unique())),
        pl.col("place", "order", "visit", "rounds", "seed").cast(small),
    )  # fmt: skip
    numbers = measures.lazy().select("run", "round", "domain", "measure", "value", "count")
    known = numbers.filter(pl.col("measure").str.contains(f"^({wanted})$")).with_columns(pl.col("round").cast(small))
    joined = known.join(names, on=["run", "domain"]).filter(pl.col("round") <= pl.col("rounds")).drop("run")
    return joined.with_columns(pl.col("measure", "domain").cast(pl.Categorical)).collect(engine="streaming")


def per_round(frame: "pl.DataFrame", *measures: str, pooled: bool = False) -> "pl.DataFrame":
    """Return the mean of measures over domains and seeds for each round, with its spread over the seeds.

    Columns are `measure`, `place`, `column`, `order`, `label`, `round`, `value`, `deviation` (over seeds, null for
    one), `low`, `high` and `seeds`. Seeds with fewer rounds than others are left out. Stateless methods go on to the
    last round of their column. The mean is null where a domain has no number.

    Args:
        frame: As `label_measures` returns it.
        measures: Which numbers.
        pooled: Weigh domains by `count`, so that all samples of a round count alike, and leave out empty ones.
    """
    value, count, keys = pl.col("value"), pl.col("count"), ["measure", *SERIES, "stateless", "rounds"]
    mean = (value * count).sum() / count.filter(value.is_not_null()).sum() if pooled else value.mean()
    known = pl.lit(True) if pooled else value.is_not_null().all()
    chosen = frame.lazy().filter(pl.col("measure").is_in(measures)).group_by(*keys, "seed", "round")
    seeds = (
        chosen.agg(value=pl.when(known).then(mean)).collect().with_columns(pl.col(pl.Enum, pl.Categorical).cast(str))
    )
    longest = seeds.filter(pl.col("rounds") == pl.col("rounds").max().over("measure", *SERIES))
    rounds = longest.group_by(*keys, "round").agg(
        deviation=value.std(), low=value.min(), high=value.max(), seeds=pl.len(), value=value.mean()
    )
    last = pl.col("rounds").max().over("place")
    ends = rounds.with_columns(last=last).filter(pl.col("stateless") & (pl.col("round") == pl.col("rounds")))
    later = ends.with_columns(round=pl.int_ranges(pl.col("round") + 1, pl.col("last") + 1, dtype=pl.Int32)).drop("last")
    extended = pl.concat([rounds, later.filter(pl.col("round").list.len() > 0).explode("round")])
    return extended.sort("measure", *SERIES, "round").drop("stateless", "rounds")


def per_domain(frame: "pl.DataFrame", measure: str, *, last: bool = True) -> "pl.DataFrame":
    """Return the mean of a measure over seeds for each domain.

    Columns are `place`, `column`, `order`, `label`, `round`, `visit`, `domain` and `value`.

    Args:
        frame: As `label_measures` returns it.
        measure: Which numbers.
        last: Of the last round of each series only.
    """
    longest = frame.filter(
        (pl.col("measure") == measure) & (pl.col("rounds") == pl.col("rounds").max().over("place", "order"))
    )
    shown = longest.filter(pl.col("round") == pl.col("rounds")) if last else longest
    keys = [*SERIES, "round", "visit", "domain"]
    means = shown.group_by(keys).agg(pl.col("value").mean()).with_columns(pl.col(pl.Enum, pl.Categorical).cast(str))
    return means.sort(*SERIES, "round", "visit")


def method_order(method: str) -> tuple[int, str]:
    """Return the sort key of a method: as in the registry, plain before selecting, own ones last."""
    base, known = method.partition("+")[0], list(METHODS)
    return (known.index(base) if base in known else len(known)), method


def _stream_of(spec: Spec) -> Spec:
    measures = ("iou",) if "iou" in spec.measures else ("error",)
    return replace(spec, method="", options=(), seed=0, measures=measures)


def _stream_order(stream: Spec) -> tuple[Any, ...]:
    return stream.images, stream.model, stream.unknown or "", stream.domains, -stream.batch_size, stream.name


def _name_stream(stream: Spec, streams: Sequence[Spec]) -> str:
    setting = "" if "iou" in stream.measures else f"open ({stream.unknown})" if stream.unknown else "closed"
    network = stream.model if any(o.images == stream.images and o.model != stream.model for o in streams) else ""
    fields = distinguishing_fields(stream, [other for other in streams if other.unknown == stream.unknown])
    return ", ".join(filter(None, (stream.images, setting, network, *fields)))


def _make_unique(names: Sequence[str]) -> list[str]:
    return [f"{name} ({names[:index].count(name) + 1})" if names.count(name) > 1 else name
            for index, name in enumerate(names)]  # fmt: skip


def _name_methods(specs: Iterable[Spec]) -> Iterator[tuple[Spec, str]]:
    """Name runs by method and by the options in which the runs of that method on one stream differ."""

    def key(spec: Spec) -> tuple[str, str]:
        return _stream_of(spec).name, spec.method

    for _, group in itertools.groupby(sorted(specs, key=key), key=key):
        alike = list(group)
        options = [dict(spec.options) for spec in alike]
        varying = {
            name for name in itertools.chain(*options) if len({repr(each.get(name, "")) for each in options}) > 1
        }
        for spec in alike:
            yield spec, ", ".join([spec.method, *(_name_option(*item) for item in spec.options if item[0] in varying)])


def _name_option(name: str, value: object) -> str:
    return f"{_SYMBOLS.get(name, name)}={value:g}" if isinstance(value, float) else f"{name}={value}"


def _is_stateless(protocol: dict[str, str]) -> bool:
    """Whether a method updates nothing and keeps no statistics."""
    return protocol.get("scope") == "nothing()" and protocol.get("statistics") in ("Source()", "Batch()")
