"""Read results and fill tables from them."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from driftproof.bench.archive import RunRecord, read_runs
from driftproof.bench.spec import Spec
from driftproof.bench.store import ARCHIVE_FILE, Row, Store
from driftproof.bench.tables import Summary, Table, TableEntry
from driftproof.errors import InputError

__all__ = ["FilledTable", "Results", "Value", "fill_table"]

_TIMING_OPTIONS = ("trials", "warm_up")


@dataclass(frozen=True)
class Value:
    """One number of a filled table.

    Attributes:
        ours: Our number, the mean over seeds; None if it was not measured.
        reference: The number to compare with; None if there is none.
        round: The round it is from; earlier than `wanted` if the run has not reached that yet.
        wanted: The round the table shows.
        seeds: Number of seeds.
        deviation: Sample standard deviation over seeds; None for a single seed.
        runs: The runs it comes from.
    """

    ours: float | None = None
    reference: float | None = None
    round: int | None = None
    wanted: int = 1
    seeds: int = 0
    deviation: float | None = None
    runs: tuple[Spec, ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours minus the reference."""
        return None if self.ours is None or self.reference is None else self.ours - self.reference

    @property
    def complete(self) -> bool:
        """Whether the run has reached the round that the table shows."""
        return self.round is not None and self.round >= self.wanted


@dataclass(frozen=True)
class FilledTable:
    """A table with its numbers.

    Attributes:
        table: Its layout.
        rows: Row names in order.
        columns: Column names in order.
        values: Numbers by row and column.
    """

    table: Table
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Mapping[tuple[str, str], Value]

    def as_data(self) -> dict[str, Any]:
        """Return the table as JSON types."""
        numbers = [
            {"row": row, "column": column}
            | {key: value for key, value in vars(self.values[row, column]).items() if key != "runs"}
            | {"difference": self.values[row, column].difference}
            for row in self.rows
            for column in self.columns
            if (row, column) in self.values
        ]
        return {"table": self.table.name, "title": self.table.title, "unit": self.table.unit, "values": numbers}


class Results:
    """Results of a folder or an archive.

    Args:
        folder: A results folder or an archive.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.metadata = Store(folder).metadata
        self.runs: dict[Spec, RunRecord] = {run.spec: run for run in read_runs(self.folder)}
        if not self.runs:
            raise InputError(f"Expected results in {folder}, but there are none{_hint(self.folder)}")
        self._rows: dict[Spec, list[Row]] = {spec: run.rows for spec, run in self.runs.items()}
        self._stateless: dict[Spec, bool] = {}
        self._by_seed: dict[Spec, list[Spec]] = {}
        for spec in sorted(self.runs, key=lambda spec: (spec.seed, _trials(spec))):
            self._by_seed.setdefault(_without_seed(spec), []).append(spec)

    @property
    def is_subset(self) -> bool:
        """Whether only some images of each domain were streamed."""
        return self.metadata.get("limit") is not None

    def rows(self, spec: Spec) -> list[Row]:
        """Return the rows of a run, including those of an incomplete round."""
        return self._rows.get(spec, [])

    def rounds(self, spec: Spec) -> int:
        """Return the number of complete rounds of a run."""
        return len(self.rows(spec)) // len(spec.domains) if spec.task == "stream" else min(len(self.rows(spec)), 1)

    def seeds(self, spec: Spec) -> list[Spec]:
        """List the measured runs of a spec with any seed, number of trials, and the folder's limit and substitutes."""
        runs = self._by_seed.get(_without_seed(self._with_substitutes(spec)), [])
        return [run for run in runs if self.rounds(run)]

    def per_round(self, spec: Spec, metric: str = "error") -> list[float]:
        """Return a metric's mean over domains, for each complete round."""
        return [self._mean(spec, metric, round) for round in range(1, self.rounds(spec) + 1)]

    def value(self, entry: TableEntry) -> Value:
        """Return the number of an entry, from the entry's round or the last round reached.

        If it is the mean of several runs, this is the last round that all of them have reached, over the seeds that all
        of them have. Stateless methods do the same in every round, so their last round stands for all later ones.
        """
        (value,) = self.compare([entry])
        return replace(value, reference=entry.reference)

    def compare(self, entries: Sequence[TableEntry]) -> list[Value]:
        """Return comparable numbers of several entries: from the same round and the same seeds.

        The round is the last one that all entries have reached with at least one seed, but no later than any of them
        shows. Seeds that have not reached it are left out.
        """
        by_seed = [self._runs_by_seed(entry) for entry in entries]
        shared = [seed for seed in by_seed[0] if all(seed in others for others in by_seed)]
        wanted = max(entry.round for entry in entries)
        if not shared:
            return [Value(wanted=wanted) for _ in entries]
        reached = {seed: self._rounds_reached(run for runs in by_seed for run in runs[seed]) for seed in shared}
        round = int(min(max(reached.values()), *(entry.round for entry in entries)))
        seeds = [seed for seed in shared if reached[seed] >= round]
        return [
            replace(self._average(entry, [runs[seed] for seed in seeds], round), wanted=wanted)
            for entry, runs in zip(entries, by_seed, strict=True)
        ]

    def _runs_by_seed(self, entry: TableEntry) -> dict[int, list[Spec]]:
        """Return the runs of an entry by seed, for seeds that all its specs have."""
        by_spec = [{run.seed: run for run in self.seeds(spec)} for spec in entry.specs]
        return {
            seed: [runs[seed] for runs in by_spec] for seed in by_spec[0] if all(seed in others for others in by_spec)
        }

    def _rounds_reached(self, runs: Iterable[Spec]) -> float:
        """Return the last round that all runs have completed; infinity if all are stateless."""
        return min((self.rounds(run) for run in runs if not self.is_stateless(run)), default=math.inf)

    def _average(self, entry: TableEntry, by_seed: Sequence[Sequence[Spec]], round: int) -> Value:
        numbers = [
            statistics.fmean(self._mean(run, entry.metric, round, entry.domain) for run in runs) for runs in by_seed
        ]
        runs = tuple(itertools.chain.from_iterable(by_seed))
        if any(map(math.isnan, numbers)):
            return Value(round=round, seeds=len(numbers), runs=runs)
        deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
        return Value(statistics.fmean(numbers), round=round, seeds=len(numbers), deviation=deviation, runs=runs)

    def is_stateless(self, spec: Spec) -> bool:
        """Whether a run updates nothing and keeps no state, so that every round equals the first."""
        if spec not in self._stateless:
            protocol = self.runs[spec].protocol
            per_batch = protocol.get("statistics") in ("Source()", "Batch()")
            self._stateless[spec] = protocol.get("scope") == "nothing()" and per_batch
        return self._stateless[spec]

    def _mean(self, spec: Spec, metric: str, round: int, domain: str | None = None) -> float:
        round = min(round, self.rounds(spec)) if self.is_stateless(spec) else round
        values = [
            row.get(metric) for row in self.rows(spec) if row["round"] == round and domain in (None, row["domain"])
        ]
        return statistics.fmean(math.nan if value is None else value for value in values) if values else math.nan

    def _with_substitutes(self, spec: Spec) -> Spec:
        replaced = self.metadata.get("replaced", {})
        return replace(
            spec,
            limit=self.metadata.get("limit", spec.limit),
            images=replaced.get(spec.images, spec.images),
            unknown=replaced.get(spec.unknown, spec.unknown),
            model=replaced.get(spec.model, spec.model),
        )

    def tables(self, tables: Iterable[Table]) -> list[FilledTable]:
        """Fill tables, and list those with at least one measured number."""
        filled = (fill_table(self, table) for table in tables)
        return [table for table in filled if any(value.ours is not None for value in table.values.values())]


def _hint(folder: Path) -> str:
    """Say what to do about a folder without results: read one of its subfolders, or run a benchmark."""
    below = sorted(str(path.parent) for name in (ARCHIVE_FILE, "cells") for path in folder.glob(f"*/{name}"))
    if below:
        return f". Choose one of its subfolders with results: {', '.join(below)}."
    return ". Run `driftproof bench run` first."


def fill_table(results: Results, table: Table) -> FilledTable:
    """Fill a table with the numbers of a results folder.

    A summary column uses the last round that all its columns have reached.
    """
    entries = {(entry.row, entry.column): entry for entry in table.entries}
    values = {(entry.row, entry.column): results.value(entry) for entry in table.entries}
    rows = _unique(entry.row for entry in table.entries)
    for summary in table.summaries:
        for row in rows:
            summarized = [entries[row, of] for of in summary.of if (row, of) in entries]
            found = results.compare(summarized) if len(summarized) == len(summary.of) else [Value()]
            values[row, summary.column] = _summarize(summary, found, summary.references.get(row))
    columns = _unique([*(entry.column for entry in table.entries), *(summary.column for summary in table.summaries)])
    return FilledTable(table, rows, columns, values)


def _summarize(summary: Summary, values: list[Value], reference: float | None) -> Value:
    wanted = max(value.wanted for value in values)
    ours = [value.ours for value in values if value.ours is not None]
    if len(ours) < len(values):
        return Value(reference=reference, wanted=wanted)
    number = statistics.fmean(ours) if summary.how == "mean" else statistics.stdev(ours)
    round, seeds = min(value.round or 0 for value in values), min(value.seeds for value in values)
    return Value(number, reference, round, wanted, seeds)


def _without_seed(spec: Spec) -> Spec:
    """Return the spec without its seed and number of trials, which do not change what is measured."""
    options = tuple((key, value) for key, value in spec.options if spec.task != "costs" or key not in _TIMING_OPTIONS)
    return replace(spec, seed=0, options=options)


def _trials(spec: Spec) -> int:
    return int(dict(spec.options).get("trials") or 0) if spec.task == "costs" else 0


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
