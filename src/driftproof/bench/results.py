"""Fill tables from results: which runs, which round and which seeds make comparable numbers."""

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from driftproof.bench.frames import Schema, pl, read_frames
from driftproof.bench.spec import Spec
from driftproof.bench.store import Row, Store
from driftproof.bench.tables import Table, TableEntry

__all__ = ["FilledTable", "Results", "RunFacts", "Value", "fill_table", "is_stateless"]

_FACTS = ("spec", "run", "visits", "rounds", "protocol", "conditions")
_COLUMNS: Schema = {"row": pl.String, "column": pl.String, "ours": pl.Float64, "reference": pl.Float64}
_COLUMNS |= dict.fromkeys(("round", "wanted", "seeds"), pl.Int64)
_COLUMNS |= {"deviation": pl.Float64, "runs": pl.List(pl.String)}
_TIMING_OPTIONS = ("trials", "warm_up")
_STATELESS_OUTPUTS = ("before", "LaplacianAdjusted", "AveragedViews")


@dataclass(frozen=True)
class Value:
    """One number of a filled table.

    Attributes:
        ours: Our number, the mean over seeds; None if it was not measured.
        reference: The number to compare with; None if there is none.
        round: The round it is from; earlier than the `wanted` one if the run has not reached that yet.
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


class FilledTable(NamedTuple):
    """A table with its numbers, by row and column."""

    table: Table
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Mapping[tuple[str, str], Value]

    @property
    def frame(self) -> pl.DataFrame:
        """The numbers, one in a row, and the names of the runs they come from."""
        found = [
            {"row": place[0], "column": place[1], **vars(value), "runs": [run.name for run in value.runs]}
            for place in itertools.product(self.rows, self.columns)
            if (value := self.values.get(place))
        ]
        return pl.DataFrame(found, schema=_COLUMNS)


class RunFacts(NamedTuple):
    """What is known of a run besides its numbers: how far it is, and its adapter, component by component.

    Attributes:
        name: Its name, the key of the frames.
        visits: Number of visits of a domain, including those of an incomplete round.
        stretches: Environments of consecutive visits, with their number as `rows`.
    """

    name: str
    visits: int
    rounds: int
    protocol: dict[str, str]
    stretches: list[Row]


class Results:
    """Results of a folder or an archive: what all its runs share, what is known of each, and the frames of numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.metadata: dict[str, Any] = Store(self.folder).metadata
        self.frames = read_frames(folder)
        self.runs: dict[Spec, RunFacts] = {
            Spec.from_data(json.loads(spec)): RunFacts(run, visits, rounds, json.loads(protocol), json.loads(stretches))
            for spec, run, visits, rounds, protocol, stretches in self.frames.runs.select(_FACTS).iter_rows()
        }
        self._by_seed: dict[Spec, list[Spec]] = {}
        for spec in sorted(self.runs, key=lambda spec: (spec.seed, _trials(spec))):
            self._by_seed.setdefault(_without_seed(spec), []).append(spec)
        self._means = cache(self._read_means)

    @property
    def is_subset(self) -> bool:
        """Whether only some images of each domain were streamed."""
        return self.metadata.get("limit") is not None

    def rounds(self, spec: Spec) -> int:
        """Return the number of complete rounds of a run."""
        return self.runs[spec].rounds if spec in self.runs else 0

    def is_stateless(self, spec: Spec) -> bool:
        """Whether a run updates nothing and keeps no state, so that every round equals the first."""
        return is_stateless(self.runs[spec].protocol)

    def seeds(self, spec: Spec) -> list[Spec]:
        """List the measured runs of a spec with any seed, number of trials, and the folder's limit and substitutes."""
        replaced = self.metadata.get("replaced", {})
        names = {field: getattr(spec, field) for field in ("images", "unknown", "model")}
        here = {field: replaced.get(name, name) for field, name in names.items()}
        wanted = _without_seed(replace(spec, limit=self.metadata.get("limit", spec.limit), **here))
        return [run for run in self._by_seed.get(wanted, []) if self.rounds(run)]

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
        shows; where that round did not measure all of them, the last one that did. Seeds that have not reached it are
        left out.
        """
        runs = {spec: {run.seed: run for run in self.seeds(spec)} for entry in entries for spec in entry.specs}
        first, *others = runs.values()
        shared = [seed for seed in first if all(seed in other for other in others)]
        wanted = max(entry.round for entry in entries)
        if not shared:
            return [Value(wanted=wanted) for _ in entries]
        reached = {seed: self._rounds_reached(by_seed[seed] for by_seed in runs.values()) for seed in shared}
        round = int(min(max(reached.values()), *(entry.round for entry in entries)))
        seeds = [seed for seed in shared if reached[seed] >= round]
        measured = [(entry, runs[spec][seed]) for entry in entries for spec in entry.specs for seed in seeds]
        round = next((each for each in range(round, 0, -1) if self._are_measured(measured, each)), round)
        return [
            self._average(entry, [[runs[spec][seed] for spec in entry.specs] for seed in seeds], round, wanted)
            for entry in entries
        ]

    def tables(self, tables: Iterable[Table]) -> list[FilledTable]:
        """Fill tables, and list those with at least one measured number."""
        filled = (fill_table(self, table) for table in tables)
        return [table for table in filled if any(value.ours is not None for value in table.values.values())]

    def _rounds_reached(self, runs: Iterable[Spec]) -> float:
        """Return the last round that all runs have completed; infinity if all are stateless."""
        return min((self.rounds(run) for run in runs if not self.is_stateless(run)), default=math.inf)

    def _are_measured(self, entries: Iterable[tuple[TableEntry, Spec]], round: int) -> bool:
        """Whether the runs have rows of the entries' metrics in a round."""
        return all(
            self.is_stateless(run) or (self.runs[run].name, round) in self._means(entry.metric, entry.domain)
            for entry, run in entries
        )

    def _average(self, entry: TableEntry, by_seed: Sequence[Sequence[Spec]], round: int, wanted: int) -> Value:
        numbers = [[self._mean(run, entry.metric, round, entry.domain) for run in runs] for runs in by_seed]
        means = list(map(statistics.fmean, numbers))
        found = Value(round=round, wanted=wanted, seeds=len(means), runs=tuple(itertools.chain(*by_seed)))
        if any(map(math.isnan, means)):
            return found
        deviation = statistics.stdev(means) if len(means) > 1 else None
        return replace(found, ours=statistics.fmean(means), deviation=deviation)

    def _mean(self, spec: Spec, metric: str, round: int, domain: str | None = None) -> float:
        round = min(round, self.rounds(spec)) if self.is_stateless(spec) else round
        return self._means(metric, domain).get((self.runs[spec].name, round), math.nan)

    def _read_means(self, metric: str, domain: str | None) -> dict[tuple[str, int], float]:
        """Return a metric's mean over domains by run and round; NaN where a domain has no number."""
        chosen = self.frames.measures.filter(measure=metric, **({} if domain is None else {"domain": domain}))
        grouped = chosen.group_by("run", "round").agg(pl.col("value").fill_null(math.nan)).collect()
        return {(run, round): statistics.fmean(values) for run, round, values in grouped.iter_rows()}


def fill_table(results: Results, table: Table) -> FilledTable:
    """Fill a table with the numbers of a results folder.

    A summary column uses the last round that all its columns have reached.
    """
    entries = {(entry.row, entry.column): entry for entry in table.entries}
    rows = tuple(dict.fromkeys(row for row, _ in entries))
    values = {place: results.value(entry) for place, entry in entries.items()}
    for summary, row in itertools.product(table.summaries, rows):
        summarized = [entries[row, of] for of in summary.of if (row, of) in entries]
        found = results.compare(summarized) if len(summarized) == len(summary.of) else [Value()]
        values[row, summary.column] = _summarize(summary.how, found, summary.references.get(row))
    columns = tuple(dict.fromkeys([column for _, column in entries] + [summary.column for summary in table.summaries]))
    return FilledTable(table, rows, columns, values)


def is_stateless(protocol: Mapping[str, str]) -> bool:
    """Whether a protocol is of a method that updates nothing and keeps no state."""
    nothing_learns = protocol.get("scope") == "nothing()" and protocol.get("statistics") in ("Source()", "Batch()")
    return nothing_learns and protocol.get("output", "before").partition("(")[0] in _STATELESS_OUTPUTS


def _summarize(how: str, values: Sequence[Value], reference: float | None) -> Value:
    wanted = max(value.wanted for value in values)
    ours = [value.ours for value in values if value.ours is not None]
    if len(ours) < len(values):
        return Value(reference=reference, wanted=wanted)
    number = statistics.fmean(ours) if how == "mean" else statistics.stdev(ours)
    round, seeds = min(value.round or 0 for value in values), min(value.seeds for value in values)
    return Value(number, reference, round, wanted, seeds)


def _without_seed(spec: Spec) -> Spec:
    """Return the spec without its seed and number of trials, which do not change what is measured."""
    options = tuple((key, value) for key, value in spec.options if spec.task != "costs" or key not in _TIMING_OPTIONS)
    return replace(spec, seed=0, options=options)


def _trials(spec: Spec) -> int:
    return int(dict(spec.options).get("trials") or 0) if spec.task == "costs" else 0
