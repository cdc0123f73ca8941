"""Turn the rows of runs into data frames."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from driftproof.bench.spec import Spec
from driftproof.bench.store import Row, Run
from driftproof.errors import StateError
from driftproof.health import HealthState
from driftproof.optional import require

if TYPE_CHECKING:
    import polars as pl

    Schema = dict[str, type[pl.DataType] | pl.DataType]
else:
    pl = require("polars", "Reading results as tables", "'driftproof[report]'")

__all__ = ["FROM_CONDITIONS", "HEALTH_STATES", "RUNS", "SPEC_COLUMNS", "Frames", "tabulate_runs"]

HEALTH_STATES: tuple[str, ...] = get_args(HealthState)
"""States of the measure `health`, whose value is the index of one."""

FROM_CONDITIONS = ("seconds", "peak_memory", "step/milliseconds")
"""Measures that the spec does not determine: they depend on the machine."""

SPEC_COLUMNS = ("method", "model", "stream", "unknown", "setting", "task", "seed")
"""Columns of runs that every number carries as well."""

_VERSIONS = ("device", "hardware", "driftproof", "torch", "python", "engine", "precision")
_PLACE: "Schema" = {"run": pl.String, "round": pl.Int64, "domain": pl.String, "measure": pl.String}
_MEASURES: "Schema" = {**_PLACE, "value": pl.Float64, "count": pl.Int64}
_HISTOGRAMS: "Schema" = {**_PLACE, "bins": pl.List(pl.Float64)}
RUNS: "Schema" = {
    **dict.fromkeys(("run", *SPEC_COLUMNS[:-1]), pl.String),
    **dict.fromkeys(("seed", "severity", "batch_size", "limit"), pl.Int64),
    **dict.fromkeys(("domains", "measures"), pl.List(pl.String)),
    **dict.fromkeys(("options", "protocol"), pl.String),
    **dict.fromkeys(("visits", "rounds", "peak_memory", "threads"), pl.Int64),
    "seconds": pl.Float64,
    "channels_last": pl.Boolean,
    **dict.fromkeys((*_VERSIONS, "spec", "conditions"), pl.String),
}
"""Columns of the table of runs."""


class Frames(NamedTuple):
    """The three tables of a folder; measures and histograms name their run and nothing else of it."""

    runs: "pl.DataFrame"
    measures: "pl.LazyFrame"
    histograms: "pl.LazyFrame"


def tabulate_runs(runs: Iterable[Run], place: str) -> Frames:
    """Return the tables of runs on disk.

    Args:
        runs: The runs.
        place: Where they are, for errors.
    """
    facts, numbers, lists = [], [], []
    for run in runs:
        spec, visits, conditions = run.spec, run.rows, run.conditions
        facts.append(_describe_run(spec, run.protocol, conditions[: len(visits)]))
        for index, visit in enumerate(visits):
            if not isinstance(visit, dict) or not {"round", "domain"} <= visit.keys() or index >= len(conditions):
                raise StateError(
                    f"Expected round, domain and conditions for every row of {spec.name} in {place}, "
                    f"but line {index + 1} lacks some of that."
                )
            key, counts = (spec.name, visit["round"], visit["domain"]), visit.get("counts", {})
            for name, value, count in _measures(visit, conditions[index]):
                if isinstance(value, list):
                    lists.append((*key, name, _flatten(value)))
                else:
                    numbers.append((*key, name, _to_number(name, value), counts.get(name, count)))
    return Frames(
        pl.DataFrame(facts, schema=RUNS),
        pl.DataFrame(numbers, schema=_MEASURES, orient="row").lazy(),
        pl.DataFrame(lists, schema=_HISTOGRAMS, orient="row").lazy(),
    )


def _describe_run(spec: Spec, protocol: Mapping[str, str], conditions: Sequence[Row]) -> Row:
    visits, last = len(conditions), conditions[-1] if conditions else {}
    peaks = [row["peak_memory"] for row in conditions if row.get("peak_memory") is not None]
    texts = {"options": dict(spec.options), "protocol": protocol, "spec": spec.as_data()}
    return {
        **{name: getattr(spec, name, None) for name in RUNS},
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
    """Yield name and value of what a visit measured, its time and its memory, with the count of steps."""
    yield from ((name, value, None) for name, value in visit.items() if name not in ("round", "domain", "counts"))
    yield from ((name, condition[name], None) for name in FROM_CONDITIONS if name in condition)
    if condition.get("seconds") is not None and visit.get("batches"):
        yield "step/milliseconds", 1000 * condition["seconds"] / visit["batches"], visit["batches"]


def _to_number(name: str, value: Any) -> float | None:  # noqa: ANN401  # as JSON has it
    if isinstance(value, str) and value not in HEALTH_STATES:
        raise StateError(f"Expected a number for `{name}`, but got {value!r}.")
    return None if value is None else float(HEALTH_STATES.index(value) if isinstance(value, str) else value)


def _flatten(values: list[Any]) -> list[float | None]:
    nested = [value if isinstance(value, list) else [value] for value in values]
    return [None if value is None else float(value) for row in nested for value in row]


def _dump(data: Any) -> str:  # noqa: ANN401
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)
