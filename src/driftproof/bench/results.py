"""Results read back: the numbers of a table from the rows on disk."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from driftproof.bench.archive import RunRecord, read_runs
from driftproof.bench.paper import paper_table
from driftproof.bench.spec import Spec
from driftproof.bench.store import ARCHIVE_FILE, Row, Store
from driftproof.bench.suites import SUITES
from driftproof.bench.tables import TableEntry, Summary, Table
from driftproof.errors import InputError

__all__ = ["FilledTable", "Results", "Value", "fill_table"]

_OF_TIMING = ("trials", "warm_up")
_FIRST = ". Run `driftproof bench run` first."


@dataclass(frozen=True)
class Value:
    """One number of a filled table.

    Attributes:
        ours: What was measured; the mean over seeds. None if nothing was.
        paper: What the paper says; None if it says nothing.
        round: The round it is from; an earlier one than the table asks for if the run has not got there yet.
        wanted: The round the table asks for.
        seeds: Over how many seeds.
        deviation: Their sample standard deviation; None for a single one.
        runs: The cells it comes from.
    """

    ours: float | None = None
    paper: float | None = None
    round: int | None = None
    wanted: int = 1
    seeds: int = 0
    deviation: float | None = None
    runs: tuple[Spec, ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper

    @property
    def complete(self) -> bool:
        """Whether the round that was asked for has been reached."""
        return self.round is not None and self.round >= self.wanted


@dataclass(frozen=True)
class FilledTable:
    """A table with its numbers.

    Attributes:
        table: What it shows.
        rows: Names of the methods, in order.
        columns: Names of the settings, in order.
        values: The numbers by row and column.
    """

    table: Table
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Mapping[tuple[str, str], Value]

    def as_data(self) -> dict[str, Any]:
        """The table as JSON knows it."""
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
    """The rows of a results folder, or of an archive made of some.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.metadata = Store(folder).metadata
        self.runs: dict[Spec, RunRecord] = {run.spec: run for run in read_runs(self.folder)}
        if not self.runs:
            raise InputError(f"Expected results in {folder}, but there are none{_instead(self.folder)}")
        self._rows: dict[Spec, list[Row]] = {spec: cell.rows for spec, cell in self.runs.items()}
        self._steady: dict[Spec, bool] = {}
        self._runs: dict[Spec, list[Spec]] = {}
        for spec in sorted(self.runs, key=lambda spec: (spec.seed, _trials(spec))):
            self._runs.setdefault(_measuring(spec), []).append(spec)

    @property
    def is_subset(self) -> bool:
        """Whether only some images of each domain were streamed."""
        return self.metadata.get("limit") is not None

    def rows(self, spec: Spec) -> list[Row]:
        """What a cell measured, in complete rounds and the begun one."""
        return self._rows.get(spec, [])

    def rounds(self, spec: Spec) -> int:
        """How many rounds of a cell are complete."""
        return len(self.rows(spec)) // len(spec.domains) if spec.task == "stream" else min(len(self.rows(spec)), 1)

    def seeds(self, spec: Spec) -> list[Spec]:
        """The measured cells that differ from a spec in seed or trials alone, and in what the whole folder shares."""
        runs = self._runs.get(_measuring(self._as_run_here(spec)), [])
        return [run for run in runs if self.rounds(run)]

    def per_round(self, spec: Spec, measure: str = "error") -> list[float]:
        """The mean over domains of a measure, for each complete round."""
        return [self._mean(spec, measure, round) for round in range(1, self.rounds(spec) + 1)]

    def value(self, entry: TableEntry, paper: float | None = None) -> Value:
        """The number of a table's entry; from the last round that was reached, if it is not yet done.

        Where it is the mean of several cells, that is the last round that all of them have reached, and only seeds that
        all were run with count. What learns nothing does the same in every round, so its last one stands for all that
        follow.
        """
        (value,) = self.compare([entry])
        return replace(value, paper=paper)

    def compare(self, entries: Sequence[TableEntry]) -> list[Value]:
        """The numbers of some entries that are to be compared: of the same round, and of the same seeds.

        The round is the last that is wanted and that all entries have reached with some seed; seeds that have not come
        so far are left out.
        """
        by_seed = [self._runs_of(entry) for entry in entries]
        shared = [seed for seed in by_seed[0] if all(seed in others for others in by_seed)]
        wanted = max(entry.round for entry in entries)
        if not shared:
            return [Value(wanted=wanted) for _ in entries]
        come = {seed: self._reached(run for runs in by_seed for run in runs[seed]) for seed in shared}
        round = int(min(max(come.values()), *(entry.round for entry in entries)))
        counted = [seed for seed in shared if come[seed] >= round]
        return [
            replace(self._averaged(entry, [runs[seed] for seed in counted], round), wanted=wanted)
            for entry, runs in zip(entries, by_seed, strict=True)
        ]

    def _runs_of(self, entry: TableEntry) -> dict[int, list[Spec]]:
        """The cells of an entry by seed, for seeds that none of them lacks."""
        cells = [{run.seed: run for run in self.seeds(spec)} for spec in entry.specs]
        return {seed: [runs[seed] for runs in cells] for seed in cells[0] if all(seed in others for others in cells)}

    def _reached(self, runs: Iterable[Spec]) -> float:
        """The last round that all of them have completed; there is none where every round is like the first."""
        return min((self.rounds(run) for run in runs if not self.is_stateless(run)), default=math.inf)

    def _averaged(self, entry: TableEntry, by_seed: Sequence[Sequence[Spec]], round: int) -> Value:
        numbers = [
            statistics.fmean(self._mean(run, entry.metric, round, entry.domain) for run in runs) for runs in by_seed
        ]
        runs = tuple(itertools.chain.from_iterable(by_seed))
        if any(map(math.isnan, numbers)):
            return Value(round=round, seeds=len(numbers), runs=runs)
        deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
        return Value(statistics.fmean(numbers), round=round, seeds=len(numbers), deviation=deviation, runs=runs)

    def is_stateless(self, spec: Spec) -> bool:
        """Whether nothing moves and nothing is remembered, so that every round is like the first."""
        if spec not in self._steady:
            said = self.runs[spec].protocol
            self._steady[spec] = said.get("scope") == "nothing()" and said.get("statistics") in ("Source()", "Batch()")
        return self._steady[spec]

    def _mean(self, spec: Spec, measure: str, round: int, domain: str | None = None) -> float:
        round = min(round, self.rounds(spec)) if self.is_stateless(spec) else round
        values = [
            row.get(measure) for row in self.rows(spec) if row["round"] == round and domain in (None, row["domain"])
        ]
        return statistics.fmean(math.nan if value is None else value for value in values) if values else math.nan

    def _as_run_here(self, spec: Spec) -> Spec:
        replaced = self.metadata.get("replaced", {})
        return replace(
            spec,
            limit=self.metadata.get("limit", spec.limit),
            images=replaced.get(spec.images, spec.images),
            unknown=replaced.get(spec.unknown, spec.unknown),
            model=replaced.get(spec.model, spec.model),
        )

    def tables(self) -> list[FilledTable]:
        """Every table of every suite of which at least one number has been measured."""
        return list(self._tables)

    @cached_property
    def _tables(self) -> list[FilledTable]:
        everything = (fill_table(self, table) for make in SUITES.values() for table in make().tables)
        return [table for table in everything if any(value.ours is not None for value in table.values.values())]


def _instead(folder: Path) -> str:
    """What to do about a folder without results: read those below it, or make some."""
    below = sorted(str(path.parent) for name in (ARCHIVE_FILE, "cells") for path in folder.glob(f"*/{name}"))
    return f"; there are in {', '.join(below)}, to be read one at a time." if below else _FIRST


def fill_table(results: Results, table: Table) -> FilledTable:
    """A table with its numbers from a results folder, beside the paper's.

    A column that summarizes others does so in the last round that all of them have reached.
    """
    paper = paper_table(table.paper) if table.paper else None
    entries = {(entry.row, entry.column): entry for entry in table.entries}
    values = {}
    for entry in table.entries:
        theirs = paper.value(entry.paper_row, entry.column) if paper and entry.paper_row else None
        values[entry.row, entry.column] = results.value(entry, theirs)
    rows = _once(entry.row for entry in table.entries)
    paper_rows = {entry.row: entry.paper_row for entry in table.entries}
    for summary in table.summaries:
        for row in rows:
            theirs = paper.value(name, summary.column) if paper and (name := paper_rows[row]) else None
            together = [entries[row, of] for of in summary.of if (row, of) in entries]
            found = results.compare(together) if len(together) == len(summary.of) else [Value()]
            values[row, summary.column] = _summarized(summary, found, theirs)
    columns = _once([*(entry.column for entry in table.entries), *(summary.column for summary in table.summaries)])
    return FilledTable(table, rows, columns, values)


def _summarized(summary: Summary, values: list[Value], paper: float | None) -> Value:
    wanted = max(value.wanted for value in values)
    ours = [value.ours for value in values if value.ours is not None]
    if len(ours) < len(values):
        return Value(paper=paper, wanted=wanted)
    number = statistics.fmean(ours) if summary.how == "mean" else statistics.stdev(ours)
    return Value(number, paper, min(value.round or 0 for value in values), wanted, min(value.seeds for value in values))


def _measuring(spec: Spec) -> Spec:
    """What a cell measures, without what only makes it more certain: its seed, and how often a step was timed."""
    kept = tuple((key, value) for key, value in spec.options if spec.task != "costs" or key not in _OF_TIMING)
    return replace(spec, seed=0, options=kept)


def _trials(spec: Spec) -> int:
    return int(dict(spec.options).get("trials") or 0) if spec.task == "costs" else 0


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
