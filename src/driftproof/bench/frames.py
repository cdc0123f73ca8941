"""Results as data frames: one tidy table of numbers, one table of runs, one of histograms.

The frames are polars': one wheel without dependencies, native Parquet, and plotting and table libraries take them as
they are. `.to_pandas()` converts them. Results folders (JSON lines) and archives (Parquet) give the same frames.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from driftproof.bench.libraries import pl
from driftproof.bench.seal import check_seal
from driftproof.bench.spec import Spec
from driftproof.bench.store import ARCHIVE_FILE, Row, Run, Store
from driftproof.errors import DriftproofError, InputError, StateError
from driftproof.files import sha256
from driftproof.health import HealthState

__all__ = ["FILES", "FROM_CONDITIONS", "HEALTH_STATES", "Frames", "load", "load_histograms", "load_runs"]
__all__ += ["Schema", "merge_frames", "pl", "read_frames", "tabulate_runs"]

Schema = dict[str, type[pl.DataType] | pl.DataType]

FILES = ("measures.parquet", "histograms.parquet", ARCHIVE_FILE)
"""The tables of an archive. The last one, that of the runs, holds the checksums of the others."""

HEALTH_STATES: tuple[str, ...] = get_args(HealthState)
"""States of the measure `health`, whose value is the index of one."""

FROM_CONDITIONS = ("seconds", "peak_memory", "step/milliseconds")
"""Measures that the spec does not determine: they depend on the machine."""

_SPEC_COLUMNS = ("method", "model", "stream", "unknown", "setting", "task", "seed")

_VERSIONS = ("device", "hardware", "driftproof", "torch", "python", "engine", "precision")
_PLACE: Schema = {"run": pl.String, "round": pl.Int64, "domain": pl.String, "measure": pl.String}
_MEASURES: Schema = {**_PLACE, "value": pl.Float64, "count": pl.Int64}
_HISTOGRAMS: Schema = {**_PLACE, "bins": pl.List(pl.Float64)}
_RUNS: Schema = {
    **dict.fromkeys(("run", *_SPEC_COLUMNS[:-1]), pl.String),
    **dict.fromkeys(("seed", "severity", "batch_size", "limit"), pl.Int64),
    **dict.fromkeys(("domains", "measures"), pl.List(pl.String)),
    **dict.fromkeys(("options", "protocol"), pl.String),
    **dict.fromkeys(("visits", "rounds", "peak_memory", "threads"), pl.Int64),
    "seconds": pl.Float64,
    "channels_last": pl.Boolean,
    **dict.fromkeys((*_VERSIONS, "spec", "conditions"), pl.String),
}
_COLUMNS = ("run", *_SPEC_COLUMNS[:-1], "round", "domain", "seed", "measure", "value", "count")


class Frames(NamedTuple):
    """The three tables of a folder; measures and histograms name their run and nothing else of it."""

    runs: pl.DataFrame
    measures: pl.LazyFrame
    histograms: pl.LazyFrame


def load(folder: Path | str, *more: Path | str) -> pl.DataFrame:
    """Return every measured number of results folders or archives, one row each.

    Columns are `run`, `method`, `model`, `stream`, `unknown`, `setting` (open or closed), `task`, `round`, `domain`,
    `seed`, `measure`, `value` and `count`. `driftproof bench list` says what the measures are.

    - `value` is null where a number could not be measured. That of `health` is an index into `HEALTH_STATES`.
    - `count` is the number of samples that the value is over: the known images for `error`, the selected samples for
      `precision`, the steps for `step/milliseconds`. It is null for what is itself a count or not over samples.
      Archives made before driftproof stored counts have it only where it follows: for `rejected` on image streams, and
      for `error` on closed ones. Their values are rounded to five decimals.
    - `seconds`, `peak_memory` and `step/milliseconds` depend on the machine, all other measures on the spec alone. In
      those older archives the peak is that of all visits under the same conditions.

    Of a run that several folders hold, the longest counts.
    """
    frames = read_frames(folder, *more)
    runs = frames.runs.lazy().select("run", *_SPEC_COLUMNS)
    return frames.measures.join(runs, on="run", maintain_order="left").select(_COLUMNS).collect()


def load_runs(folder: Path | str, *more: Path | str) -> pl.DataFrame:
    """Return the runs of results folders or archives, one row each.

    Columns are the fields of the spec (`options` as JSON), `protocol` (JSON), the number of `visits` of a domain and of
    complete `rounds`, `seconds` in all, the largest `peak_memory`, and the environment of the last visit. `spec` is the
    whole spec as JSON, `conditions` the environment of all visits (JSON, run-length encoded), `folder` where it was
    read.
    """
    return read_frames(folder, *more).runs


def load_histograms(folder: Path | str, *more: Path | str) -> pl.DataFrame:
    """Return the histograms of results folders or archives: run, round, domain, measure and bins.

    Archives hold those of the first and the last complete round. The matrices of the task `gradients` are flattened,
    row by row.
    """
    return read_frames(folder, *more).histograms.collect()


def read_frames(folder: Path | str, *more: Path | str) -> Frames:
    """Return the tables of results folders or archives, of each run the longest."""
    found = [_read_folder(Path(each)) for each in (folder, *more)]
    return found[0] if len(found) == 1 else merge_frames(found)


def merge_frames(found: Sequence[Frames]) -> Frames:
    """Merge tables; of a run that several hold, the longest counts, or else the first."""
    runs = pl.concat([frames.runs.with_columns(source=pl.lit(index)) for index, frames in enumerate(found)])
    runs = runs.sort("visits", descending=True, maintain_order=True).unique("run", keep="first").sort("run")

    def merge(tables: Iterable[pl.LazyFrame]) -> pl.LazyFrame:
        kept = [
            table.join(runs.lazy().filter(source=index), on="run", how="semi", maintain_order="left")
            for index, table in enumerate(tables)
        ]
        return pl.concat(kept).sort("run", maintain_order=True)

    measures, histograms = merge(each.measures for each in found), merge(each.histograms for each in found)
    return Frames(runs.drop("source"), measures, histograms)


def _read_folder(folder: Path) -> Frames:
    is_archive = (folder / ARCHIVE_FILE).exists()
    if is_archive:
        check_seal(folder / ARCHIVE_FILE)
    frames = _read_archive(folder) if is_archive else tabulate_runs(Store(folder).runs(), str(folder))
    if frames.runs.is_empty():
        below = sorted(str(path.parent) for name in (ARCHIVE_FILE, "cells") for path in folder.glob(f"*/{name}"))
        choose = f"Choose one of its subfolders with results: {', '.join(below)}."
        advice = choose if below else "Run `driftproof bench run` first."
        raise InputError(f"Expected results in {folder}, but there are none. {advice}")
    return frames._replace(runs=frames.runs.with_columns(folder=pl.lit(str(folder))))


def _read_archive(folder: Path) -> Frames:
    try:
        runs = pl.read_parquet(folder / ARCHIVE_FILE)
        checksums = json.loads(pl.read_parquet_metadata(folder / ARCHIVE_FILE)["checksums"])
        measures, histograms = (_find_table(folder / name, checksums[name]) for name in FILES[:2])
        changed = [name for name, kind in _RUNS.items() if runs.schema[name] != kind]
        for path, schema in ((measures, _MEASURES), (histograms, _HISTOGRAMS)):
            changed += [path.name] if dict(pl.read_parquet_schema(path)) != schema else []
    # Reading a damaged table may raise anything; what polars panics with is no Exception.
    except (Exception, pl.exceptions.PanicException) as error:
        message = f"Expected an archive in {folder}, but it cannot be read: {error!r}. Export it again."
        raise StateError(message) from error
    if changed:
        raise StateError(f"Expected {folder} as it was written, but {', '.join(changed)} changed. Export it again.")
    return Frames(runs, pl.scan_parquet(measures), pl.scan_parquet(histograms))


def _find_table(path: Path, checksum: str) -> Path:
    """Return the file with this checksum: the table, or its next version, if a process died while it replaced them."""
    candidates = [each for each in (path, path.with_name(f"{path.name}.next")) if each.exists()]
    found = [each for each in candidates if sha256(each) == checksum]
    if not found:
        raise ValueError(f"{path.name} is missing or changed")
    return found[0]


def tabulate_runs(runs: Iterable[Run], place: str) -> Frames:
    """Return the tables of runs on disk; `place` is where they are, for errors."""
    facts: list[Row] = []
    numbers: list[tuple[Any, ...]] = []
    lists: list[tuple[Any, ...]] = []
    try:
        for run in runs:
            spec, visits, conditions = run.spec, run.rows, run.conditions
            name_of_run = spec.name  # a hash of all its fields
            facts.append(_describe_run(spec, run.protocol, conditions[: len(visits)]))
            for index, visit in enumerate(visits):
                if not isinstance(visit, dict) or not {"round", "domain"} <= visit.keys() or index >= len(conditions):
                    raise ValueError(f"line {index + 1} of {name_of_run} lacks a round, a domain or conditions")
                key = name_of_run, visit["round"], visit["domain"]
                for name, value, count in _measures(visit, conditions[index]):
                    if isinstance(value, list):
                        lists.append((*key, name, _to_list(name, value)))
                    else:
                        numbers.append((*key, name, _to_number(name, value), count))
        return Frames(
            pl.DataFrame(facts, schema=_RUNS),
            pl.DataFrame(numbers, schema=_MEASURES, orient="row").lazy(),
            pl.DataFrame(lists, schema=_HISTOGRAMS, orient="row").lazy(),
        )
    except DriftproofError:
        raise
    # Values of unexpected types, which Python and polars answer with errors of many kinds.
    except Exception as error:
        raise StateError(f"Expected rows of numbers and texts in {place}, but {error}.") from error


def _describe_run(spec: Spec, protocol: Mapping[str, str], conditions: Sequence[Row]) -> Row:
    visits, last = len(conditions), conditions[-1] if conditions else {}
    peaks = [row["peak_memory"] for row in conditions if row.get("peak_memory") is not None]
    texts = {"options": dict(spec.options), "protocol": protocol, "spec": spec.as_data()}
    return {
        **{name: getattr(spec, name, None) for name in _RUNS},
        **{name: last.get(name) for name in (*_VERSIONS, "threads", "channels_last")},
        **{name: _dump(data) for name, data in texts.items()},
        "run": spec.name,
        "stream": spec.images,
        "visits": visits,
        "rounds": visits // len(spec.domains) if spec.task == "stream" else min(visits, 1),
        "seconds": math.fsum(row.get("seconds") or 0.0 for row in conditions),
        "peak_memory": max(peaks, default=None),
        "conditions": _dump(list(_run_length_encode(conditions))),
    }


def _run_length_encode(conditions: Sequence[Row]) -> Iterator[Row]:
    """Merge consecutive visits with the same conditions; time and memory are measures of each visit."""
    fields = ([item for item in row.items() if item[0] not in FROM_CONDITIONS] for row in conditions)
    for constant, group in itertools.groupby(fields):
        yield {"rows": len(list(group)), **dict(constant)}


def _measures(visit: Row, condition: Row) -> Iterator[tuple[str, Any, int | None]]:
    """Yield name and value of what a visit measured, its time and its memory, with the number of samples or steps."""
    counts = visit.get("counts", {})
    measured = {name: value for name, value in visit.items() if name not in ("round", "domain", "counts")}
    measured |= {name: condition[name] for name in FROM_CONDITIONS if name in condition}
    yield from ((name, value, counts.get(name)) for name, value in measured.items())
    if condition.get("seconds") is not None and visit.get("batches"):
        yield "step/milliseconds", 1000 * condition["seconds"] / visit["batches"], visit["batches"]


def _to_number(name: str, value: Any) -> float | None:  # noqa: ANN401  # as JSON has it
    if isinstance(value, str):
        if value not in HEALTH_STATES:
            raise ValueError(f"`{name}` is {value!r}, not a number")
        return float(HEALTH_STATES.index(value))
    return None if value is None else float(value)


def _to_list(name: str, values: list[Any]) -> list[float | None]:
    rows = (value if isinstance(value, list) else [value] for value in values)
    return [_to_number(name, value) for value in itertools.chain(*rows)]


def _dump(data: Any) -> str:  # noqa: ANN401
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)
