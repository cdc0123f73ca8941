"""Series of a report: runs grouped by method and setting, and their means over domains and seeds."""

import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from driftproof.bench.libraries import pl
from driftproof.bench.results import is_stateless
from driftproof.bench.spec import Spec, distinguishing_fields
from driftproof.methods.by_name import METHODS

__all__ = ["SERIES", "label_measures", "label_runs", "per_domain", "per_round"]

_SYMBOLS = {"epsilon": "ε", "mean_entropy": "λ_max"}
SERIES = ["place", "column", "order", "label"]
"""Columns that name a series and sort it."""


def label_runs(runs: pl.DataFrame) -> pl.DataFrame:
    """Name the method and the setting of every run of a stream that has a complete round.

    Adds `label` (the method, with the options in which its runs on a setting differ) and its `order` (that of the
    registry, a method before the same one with a selection), `column` (the setting) and its `place`, and `stateless`
    (every round equals the first). Of runs with the same label, column and seed, the longest stays: they differ in
    their measures only. Runs are those of `driftproof.bench.load_runs`.
    """
    runs = runs.filter((pl.col("task") == "stream") & (pl.col("rounds") > 0))
    specs = [Spec.from_data(json.loads(text)) for text in runs["spec"]]
    names, streams = _name_methods(specs), [_stream_of(spec) for spec in specs]
    ordered = sorted({(_method_order(spec.method), names[spec]) for spec in specs})
    order = {label: place for place, (_, label) in enumerate(ordered)}
    columns = _name_streams(streams)
    places = {stream: place for place, stream in enumerate(columns)}
    rows = [
        (names[spec], order[names[spec]], columns[stream], places[stream], is_stateless(json.loads(text)))
        for spec, stream, text in zip(specs, streams, runs["protocol"], strict=True)
    ]
    types = {"label": pl.String, "order": pl.Int32, "column": pl.String, "place": pl.Int32, "stateless": pl.Boolean}
    labeled = runs.hstack(pl.DataFrame(rows, types, orient="row")).sort("rounds", descending=True, maintain_order=True)
    return labeled.unique(["place", "order", "seed"], keep="first").sort("place", "order", "seed")


def label_measures(measures: pl.DataFrame | pl.LazyFrame, runs: pl.DataFrame, wanted: str = ".*") -> pl.DataFrame:
    """Join numbers of `driftproof.bench.load` with what `label_runs` returns, for measures that match a pattern.

    Only complete rounds stay. Adds `visit`, the domain's place in a round.
    """
    names = runs.lazy().select("run", *SERIES, "seed", "stateless", "rounds", domain="domains")
    names = names.with_columns(visit=pl.int_ranges(0, pl.col("domain").list.len())).explode("domain", "visit")
    texts = [pl.col(name).cast(pl.Enum(runs[name].unique())) for name in ("label", "column")]
    names = names.with_columns(*texts, pl.col("visit", "rounds", "seed").cast(pl.Int32))
    numbers = measures.lazy().select("run", "round", "domain", "measure", "value", "count")
    known = numbers.filter(pl.col("measure").str.contains(f"^({wanted})$")).with_columns(pl.col("round").cast(pl.Int32))
    joined = known.join(names, on=["run", "domain"]).filter(pl.col("round") <= pl.col("rounds")).drop("run")
    return joined.with_columns(pl.col("measure", "domain").cast(pl.Categorical)).collect(engine="streaming")


def per_round(frame: pl.DataFrame, *measures: str) -> pl.DataFrame:
    """Return the mean of measures over domains and seeds for each round, with its spread over the seeds.

    Columns are `measure`, `place`, `column`, `order`, `label`, `round`, `value`, `deviation` (over seeds, null for
    one), `low`, `high` and `seeds`. Seeds with fewer rounds than others are left out. Stateless methods go on to the
    last round of their column. The mean is null where a domain has no number.
    """
    value, keys = pl.col("value"), ["measure", *SERIES, "stateless", "rounds"]
    mean = pl.when(value.is_not_null().all()).then(value.mean())
    seeds = frame.filter(pl.col("measure").is_in(measures)).group_by(*keys, "seed", "round").agg(value=mean)
    seeds = seeds.with_columns(pl.col(pl.Enum, pl.Categorical).cast(pl.String))
    longest = seeds.filter(pl.col("rounds") == pl.col("rounds").max().over("measure", *SERIES))
    rounds = longest.group_by(*keys, "round").agg(
        deviation=value.std(), low=value.min(), high=value.max(), seeds=pl.len(), value=value.mean()
    )
    last = pl.col("rounds").max().over("place")
    ends = rounds.with_columns(last=last).filter(pl.col("stateless") & (pl.col("round") == pl.col("rounds")))
    later = ends.with_columns(round=pl.int_ranges(pl.col("round") + 1, pl.col("last") + 1, dtype=pl.Int32)).drop("last")
    extended = pl.concat([rounds, later.filter(pl.col("round").list.len() > 0).explode("round")])
    return extended.sort("measure", *SERIES, "round").drop("stateless", "rounds")


def per_domain(frame: pl.DataFrame, measure: str, *, last: bool = True) -> pl.DataFrame:
    """Return the mean of a measure over seeds for each domain, in the last round of each series or in all rounds.

    Columns are `place`, `column`, `order`, `label`, `round`, `visit`, `domain` and `value`.
    """
    is_longest = pl.col("rounds") == pl.col("rounds").max().over("place", "order")
    longest = frame.filter(pl.col("measure") == measure).filter(is_longest)
    shown = longest.filter(pl.col("round") == pl.col("rounds")) if last else longest
    means = shown.group_by(*SERIES, "round", "visit", "domain").agg(pl.col("value").mean())
    return means.with_columns(pl.col(pl.Enum, pl.Categorical).cast(pl.String)).sort(*SERIES, "round", "visit")


def _method_order(method: str) -> tuple[int, str]:
    """Return the sort key of a method: as in the registry, plain before selecting, own ones last."""
    base, known = method.partition("+")[0], list(METHODS)
    return (known.index(base) if base in known else len(known)), method


def _stream_of(spec: Spec) -> Spec:
    measures = ("iou",) if "iou" in spec.measures else ("error",)
    code = tuple(item for item in spec.code if item[0] != spec.method)
    return replace(spec, method="", options=(), seed=0, measures=measures, code=code)


def _name_streams(found: Iterable[Spec]) -> dict[Spec, str]:
    """Name streams, in order, by images and setting, and by what else distinguishes them."""
    names: dict[Spec, str] = {}
    streams = sorted(set(found), key=lambda s: (s.images, s.model, s.unknown or "", s.domains, -s.batch_size, s.name))
    for stream in streams:
        setting = "" if "iou" in stream.measures else f"open ({stream.unknown})" if stream.unknown else "closed"
        models = {other.model for other in streams if other.images == stream.images}
        fields = distinguishing_fields(stream, [other for other in streams if other.unknown == stream.unknown])
        parts = [stream.images, setting, stream.model if len(models) > 1 else "", *fields]
        name = ", ".join(filter(None, parts))
        again = sum(other.partition(" #")[0] == name for other in names.values())
        names[stream] = f"{name} #{again + 1}" if again else name
    return names


def _name_methods(specs: Iterable[Spec]) -> dict[Spec, str]:
    """Name runs by method, and by the options and source texts in which its runs on one stream differ."""
    groups: dict[tuple[Spec, str], dict[Spec, dict[str, Any]]] = {}
    for spec in specs:
        own = {"code": dict(spec.code)[spec.method][:6]} if spec.method in dict(spec.code) else {}
        groups.setdefault((_stream_of(spec), spec.method), {})[spec] = dict(spec.options) | own
    names = {}
    for alike in groups.values():
        keys = dict.fromkeys(itertools.chain(*alike.values()))
        varying = [key for key in keys if len({repr(options.get(key, "")) for options in alike.values()}) > 1]
        for spec, options in alike.items():
            texts = [_name_option(key, options[key]) for key in varying if key in options]
            names[spec] = ", ".join([spec.method, *texts])
    return names


def _name_option(name: str, value: object) -> str:
    return f"{_SYMBOLS.get(name, name)}={value:g}" if isinstance(value, float) else f"{name}={value}"
