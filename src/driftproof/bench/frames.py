"""Results as data frames: one tidy table of numbers, one table of runs, one of histograms.

    measures    one row per measured number: run, method, model, stream, ..., measure, value, count
    runs        one row per run: the fields of its spec, its protocol and its environment
    histograms  one row per histogram

The frames are polars': one wheel without dependencies, native Parquet, and plotting and table libraries take them as
they are. `.to_pandas()` converts them. Results folders (JSON lines) and archives (Parquet) give the same frames.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from driftproof.bench.spec import Spec
from driftproof.bench.store import Row, Run, Store
from driftproof.errors import InputError, StateError
from driftproof.files import sha256
from driftproof.health import HealthState
from driftproof.optional import require

if TYPE_CHECKING:
    import polars as pl

    Schema = dict[str, type[pl.DataType] | pl.DataType]
else:
    pl = require("polars", "Reading results as tables", "'driftproof[report]'")

__all__ = [
    "HEALTH_STATES",
    "Frames",
    "load",
    "load_histograms",
    "load_metadata",
    "load_runs",
    "read_frames",
    "tabulate_runs",
]

HEALTH_STATES: tuple[str, ...] = get_args(HealthState)
"""States of the measure `health`, whose value is the index of one."""

FILES = ("measures.parquet", "histograms.parquet", "runs.parquet")
"""The tables of an archive. The last one holds the checksums of the others."""

FROM_CONDITIONS = ("seconds", "peak_memory", "step/milliseconds")
"""Measures that the spec does not determine: they depend on the machine."""

_ENVIRONMENT = ("device", "hardware", "driftproof", "torch", "python", "engine", "precision")
_SPEC_FIELDS = {"method": "method", "model": "model", "stream": "images", "unknown": "unknown"}
_COLUMNS = ("run", *_SPEC_FIELDS, "setting", "task", "round", "domain", "seed", "measure", "value", "count")
_PLACE: "Schema" = {"run": pl.String, "round": pl.Int64, "domain": pl.String, "measure": pl.String}
_MEASURES: "Schema" = {**_PLACE, "value": pl.Float64, "count": pl.Int64}
_HISTOGRAMS: "Schema" = {**_PLACE, "bins": pl.List(pl.Float64)}
_RUNS: "Schema" = {
    **dict.fromkeys(("run", *_SPEC_FIELDS, "setting", "task"), pl.String),
    "seed": pl.Int64,
    "options": pl.String,
    "domains": pl.List(pl.String),
    **dict.fromkeys(("severity", "batch_size", "limit"), pl.Int64),
    "measures": pl.List(pl.String),
    "protocol": pl.String,
    **dict.fromkeys(("visits", "rounds"), pl.Int64),
    "seconds": pl.Float64,
    "peak_memory": pl.Int64,
    **dict.fromkeys(_ENVIRONMENT, pl.String),
    "threads": pl.Int64,
    "channels_last": pl.Boolean,
    **dict.fromkeys(("spec", "conditions"), pl.String),
}


class Frames(NamedTuple):
    """The three tables of a folder; measures and histograms name their run and nothing else of it."""

    runs: "pl.DataFrame"
    measures: "pl.LazyFrame"
    histograms: "pl.LazyFrame"


def load(folder: Path | str, *more: Path | str) -> "pl.DataFrame":
    """Return every measured number of results folders or archives, one row each.

    Columns are `run`, `method`, `model`, `stream`, `unknown`, `setting` (open or closed), `task`, `round`, `domain`,
    `seed`, `measure`, `value` and `count`.

    - `value` is null where a number could not be measured. That of `health` is an index into `HEALTH_STATES`.
    - `count` is the number of samples (pixels in segmentation, steps for `step/milliseconds`) that the value is a ratio
      over, such as the known images for `error`. It is null where the value is no ratio of counts, such as an AUROC.
      Archives made before driftproof stored counts have it only where it follows: for `rejected` on image streams,
      and for `error` on closed ones. Their values are rounded to five decimals.
    - `seconds` and `peak_memory` of a visit depend on the machine, all other measures on the spec alone. In those older
      archives the peak is that of all visits under the same conditions.

    Of a run that several folders hold, the longest counts.

    Args:
        folder: A results folder or an archive.
        more: Further ones.
    """
    frames = read_frames(folder, *more)
    runs = frames.runs.lazy().select("run", *_SPEC_FIELDS, "setting", "task", "seed")
    return frames.measures.join(runs, on="run", maintain_order="left").select(_COLUMNS).collect()


def load_runs(folder: Path | str, *more: Path | str) -> "pl.DataFrame":
    """Return the runs of results folders or archives, one row each.

    Columns are those of the spec (`options` as JSON), `protocol` (JSON), the number of `visits` of a domain and of
    complete `rounds`, `seconds` in all, the largest `peak_memory`, and the environment of the last visit. `spec` is the
    whole spec as JSON, `conditions` the environment of all visits (JSON, run-length encoded), `folder` where it was
    read.

    Args:
        folder: A results folder or an archive.
        more: Further ones.
    """
    return read_frames(folder, *more).runs


def load_histograms(folder: Path | str, *more: Path | str) -> "pl.DataFrame":
    """Return the histograms of results folders or archives: run, round, domain, measure and bins.

    Archives hold those of the first and the last complete round. The matrices of the task `gradients` are flattened,
    row by row.

    Args:
        folder: A results folder or an archive.
        more: Further ones.
    """
    return read_frames(folder, *more).histograms.collect()


def load_metadata(folder: Path | str) -> dict[str, Any]:
    """Return what all runs of a folder share, such as the limit on images."""
    return Store(Path(folder)).metadata


def read_frames(folder: Path | str, *more: Path | str) -> Frames:
    """Return the tables of results folders or archives, of each run the longest."""
    found = [_read_folder(Path(each)) for each in (folder, *more)]
    return found[0] if len(found) == 1 else merge_frames(found)


def merge_frames(found: Sequence[Frames], *prefer: str) -> Frames:
    """Merge tables; of a run that several hold, the longest counts, and of equally long ones the first.

    Args:
        found: The tables.
        prefer: Columns of `runs` by which to prefer one of equally long runs.
    """
    numbered = [frames.runs.with_columns(source=pl.lit(index)) for index, frames in enumerate(found)]
    by = ["visits", *prefer]
    runs = pl.concat(numbered).sort(by, descending=True, maintain_order=True)
    runs = runs.unique("run", keep="first", maintain_order=True).sort("run")
    chosen = [runs.filter(pl.col("source") == index).lazy().select("run") for index in range(len(found))]
    measures, histograms = (
        pl.concat(
            [
                getattr(frames, name).join(names, on="run", how="semi", maintain_order="left")
                for frames, names in zip(found, chosen, strict=True)
            ]
        ).sort("run", maintain_order=True)
        for name in ("measures", "histograms")
    )
    return Frames(runs.drop("source"), measures, histograms)


def _read_folder(folder: Path) -> Frames:
    if (folder / FILES[-1]).exists():
        frames = _read_archive(folder)
    else:
        frames = tabulate_runs(Store(folder).runs(), str(folder))
    if frames.runs.is_empty():
        raise InputError(f"Expected results in {folder}, but there are none{_suggestion(folder)}")
    return frames._replace(runs=frames.runs.with_columns(folder=pl.lit(str(folder))))


def _suggestion(folder: Path) -> str:
    """Say what to do about a folder without results: read one of its subfolders, or run a benchmark."""
    below = sorted(str(path.parent) for name in (FILES[-1], "cells") for path in folder.glob(f"*/{name}"))
    if below:
        return f". Choose one of its subfolders with results: {', '.join(below)}."
    return ". Run `driftproof bench run` first."


def _read_archive(folder: Path) -> Frames:
    measures, histograms, runs = (folder / name for name in FILES)
    try:
        table = pl.read_parquet(runs)
        checksums = json.loads(pl.read_parquet_metadata(runs)["checksums"])
        damaged = [path.name for path in (measures, histograms) if sha256(path) != checksums[path.name]]
    except (OSError, ValueError, KeyError, pl.exceptions.PolarsError) as error:
        raise StateError(
            f"Expected an archive in {folder}, but it cannot be read: {error!r}. Export it again."
        ) from error
    if damaged or dict(table.schema) != _RUNS:
        what = f"{' and '.join(damaged)} changed since" if damaged else f"{runs.name} has other columns"
        raise StateError(f"Expected the tables in {folder} as they were written, but {what}. Export it again.")
    return Frames(table, pl.scan_parquet(measures), pl.scan_parquet(histograms))


def tabulate_runs(runs: Iterable[Run], place: str) -> Frames:
    """Return the tables of runs on disk.

    Args:
        runs: The runs.
        place: Where they are, for errors.
    """
    rows: list[tuple[Any, ...]] = []
    numbers: list[tuple[Any, ...]] = []
    lists: list[tuple[Any, ...]] = []
    for run in runs:
        spec, visits, conditions = run.spec, run.rows, run.conditions
        _check_visits(spec, visits, len(conditions), place)
        rows.append(_describe_run(spec, run.protocol, conditions[: len(visits)]))
        for visit, condition in zip(visits, conditions, strict=False):
            key = spec.name, visit["round"], visit["domain"]
            counts = visit.get("counts", {})
            for name, value in itertools.chain(visit.items(), _costs(visit, condition)):
                if isinstance(value, list):
                    lists.append((*key, name, _flatten(value)))
                elif name not in ("round", "domain", "counts"):
                    count = visit.get("batches") if name == FROM_CONDITIONS[-1] else counts.get(name)
                    numbers.append((*key, name, _to_number(name, value), count))
    return Frames(
        pl.DataFrame(rows, schema=_RUNS, orient="row"),
        pl.DataFrame(numbers, schema=_MEASURES, orient="row").lazy(),
        pl.DataFrame(lists, schema=_HISTOGRAMS, orient="row").lazy(),
    )


def _check_visits(spec: Spec, visits: Sequence[Row], described: int, place: str) -> None:
    for number, visit in enumerate(visits, start=1):
        if not isinstance(visit, dict) or not {"round", "domain"} <= visit.keys() or number > described:
            raise StateError(
                f"Expected round, domain and conditions for every row of {spec.name} in {place}, "
                f"but line {number} lacks some of that."
            )


def _describe_run(spec: Spec, protocol: Mapping[str, str], conditions: Sequence[Row]) -> tuple[Any, ...]:
    visits, last = len(conditions), conditions[-1] if conditions else {}
    peaks = [row["peak_memory"] for row in conditions if row.get("peak_memory") is not None]
    return (
        spec.name,
        *(getattr(spec, field) for field in _SPEC_FIELDS.values()),
        *(spec.setting, spec.task, spec.seed, _dump(dict(spec.options)), list(spec.domains)),
        *(spec.severity, spec.batch_size, spec.limit, list(spec.measures), _dump(protocol)),
        *(visits, visits // len(spec.domains) if spec.task == "stream" else min(visits, 1)),
        *(math.fsum(row.get("seconds") or 0.0 for row in conditions), max(peaks, default=None)),
        *(last.get(name) for name in (*_ENVIRONMENT, "threads", "channels_last")),
        *(_dump(spec.as_data()), _dump(list(_run_length_encode(conditions)))),
    )


def _run_length_encode(conditions: Sequence[Row]) -> Iterator[Row]:
    """Merge consecutive visits with the same conditions; time and memory are measures of each visit."""
    fields = ([item for item in row.items() if item[0] not in FROM_CONDITIONS] for row in conditions)
    for constant, group in itertools.groupby(fields):
        yield {"rows": len(list(group)), **dict(constant)}


def _costs(visit: Row, condition: Row) -> Iterator[tuple[str, float | None]]:
    """Yield time and memory of a visit."""
    for name in FROM_CONDITIONS[:2]:
        if name in condition:
            yield name, condition[name]
    if condition.get("seconds") is not None and visit.get("batches"):
        yield FROM_CONDITIONS[2], 1000 * condition["seconds"] / visit["batches"]


def _to_number(name: str, value: Any) -> float | None:  # noqa: ANN401  # as JSON has it
    if isinstance(value, str):
        if value not in HEALTH_STATES:
            raise StateError(f"Expected a number for `{name}`, but got {value!r}.")
        return float(HEALTH_STATES.index(value))
    return None if value is None else float(value)


def _flatten(values: list[Any]) -> list[float | None]:
    nested = [value if isinstance(value, list) else [value] for value in values]
    return [None if value is None else float(value) for row in nested for value in row]


def _dump(data: Any) -> str:  # noqa: ANN401
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)
