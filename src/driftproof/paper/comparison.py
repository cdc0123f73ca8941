"""Tables as text: our numbers, the paper's and the difference, and notes where they are not comparable."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from driftproof.bench.libraries import pl
from driftproof.bench.results import FilledTable, Results, Value
from driftproof.bench.spec import Spec
from driftproof.bench.tables import TableEntry
from driftproof.corruptions import HELD_OUT
from driftproof.paper.suites import all_tables
from driftproof.report.text import format_number, format_signed, metadata_notes

__all__ = [
    "caption_of", "describe_table", "fill_tables", "format_markdown", "measured", "relevant_notes", "render_table",
    "table_notes", "to_frame",
]  # fmt: skip

_MAX_COLUMNS = 3
_Measured = list[tuple[TableEntry, Value]]


class _Cell(NamedTuple):
    """One cell of a table as text; what there is not is empty.

    `details` are the deviation over seeds, and `@7` for a number of round 7 where the table shows a later one. There
    is a difference only if the round is the paper's. The best number is one of those with the most rounds.
    """

    number: str = ""
    details: str = ""
    paper: str = ""
    difference: str = ""
    is_best: bool = False

    @property
    def markdown(self) -> str:
        """Our number in Markdown; a dash if there is none."""
        number = f"**{self.number}**" if self.is_best else self.number
        return " ".join(filter(None, (number, self.details))) or "–"

    @property
    def text(self) -> str | None:
        """Our number, in brackets the paper's and the difference; the best is marked with a star."""
        compared = f"({', '.join(filter(None, (self.paper, self.difference)))})" if self.paper else ""
        text = " ".join(filter(None, (self.number, self.details, compared)))
        return f"{'*' * self.is_best}{text}" if self.number else None


@cache
def fill_tables(results: Results) -> list[FilledTable]:
    """List the tables of all suites that have at least one measured number."""
    return results.tables(all_tables())


def measured(filled: FilledTable) -> tuple[list[str], list[str]]:
    """Return the rows and the columns of a table that have numbers."""
    places = [place for place, value in filled.values.items() if value.ours is not None]
    rows, columns = ({place[axis] for place in places} for axis in (0, 1))
    return [row for row in filled.rows if row in rows], [column for column in filled.columns if column in columns]


def _format_cell(filled: FilledTable, row: str, column: str) -> _Cell:
    """Format the number of a row and column."""
    value = filled.values.get((row, column), Value())
    paper = "" if value.reference is None else format_number(value.reference, 2)
    if value.ours is None:
        return _Cell(paper=paper)
    deviation = [] if value.deviation is None else [f"±{format_number(value.deviation, 2)}"]
    details = " ".join([*deviation, *([] if value.complete else [f"@{value.round}"])])
    difference = "" if value.difference is None or not value.complete else format_signed(value.difference, 2)
    return _Cell(format_number(value.ours, 2), details, paper, difference, _is_best(filled, value, column))


def to_frame(filled: FilledTable) -> pl.DataFrame:
    """Return a table as text, as `driftproof.report` prints it: the paper's number and the difference in brackets."""
    rows, columns = measured(filled)
    return pl.DataFrame(
        {"method": rows} | {name: [_format_cell(filled, row, name).text for row in rows] for name in columns}
    )


def _is_best(filled: FilledTable, value: Value, column: str) -> bool:
    found = (filled.values.get((row, column), Value()) for row in filled.rows)
    rivals = [(rival.round or 0, rival.ours) for rival in found if rival.ours is not None]
    last = max(round for round, _ in rivals)
    numbers, lower = [ours for round, ours in rivals if round == last], filled.table.is_lower_better(column)
    if lower is None or len(numbers) < 2 or value.round != last:
        return False
    return value.ours == (min(numbers) if lower else max(numbers))


def caption_of(filled: FilledTable) -> str:
    """Return how to read a table of `to_frame`."""
    brackets = "; in brackets the paper's number and the difference" if filled.table.reference else ""
    return f"{filled.table.name}: {describe_table(filled)}{brackets}"


def describe_table(filled: FilledTable) -> str:
    """Return the paper's name of a table, its unit, what is better, its round and its corruptions."""
    table = filled.table
    directions = {table.is_lower_better(column) for column in filled.columns}
    better = {True: "lower is better", False: "higher is better", None: ""}
    direction = better[directions.pop()] if len(directions) == 1 else ""
    streams = [(entry.round, spec) for entry in table.entries for spec in entry.specs if spec.task == "stream"]
    rounds, domains = {round for round, _ in streams}, {spec.domains for _, spec in streams}
    unit, round = "" if table.unit == "mixed" else table.unit, f"round {min(rounds)}" if len(rounds) == 1 else ""
    held_out = "held-out corruptions" if domains == {HELD_OUT} else ""
    return ", ".join(filter(None, (table.reference, unit, direction, round, held_out)))


def render_table(filled: FilledTable) -> str:
    """Render a table in Markdown; with the paper's numbers, one table per group of columns."""
    rows, columns = measured(filled)
    heads = ("paper", "difference") if filled.table.reference else ()
    tables = []
    for group in _group_columns(columns) if heads else [columns]:
        by_row = {row: [_format_cell(filled, row, column) for column in group] for row in rows}
        lines = [
            [row, *itertools.chain.from_iterable((c.markdown, c.paper, c.difference)[: 1 + len(heads)] for c in cells)]
            for row, cells in by_row.items()
            if any(cell.number for cell in cells)
        ]
        tables.append(format_markdown(["", *itertools.chain.from_iterable((name, *heads) for name in group)], lines))
    return "\n\n".join(tables)


def _group_columns(columns: Sequence[str]) -> Iterator[Sequence[str]]:
    """Group the columns of one image set; split columns without a set into groups that fit the page."""
    for name, group in itertools.groupby(columns, key=lambda column: column.partition("/")[0] * ("/" in column)):
        members = list(group)
        width = len(members) if name else _MAX_COLUMNS
        yield from (members[start : start + width] for start in range(0, len(members), width))


def format_markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, rule: str = "---:") -> str:
    """Format a Markdown table; the first column is text, `rule` aligns the others.

    Examples:
        >>> print(format_markdown(["", "error"], [["tent", "12.3"]]))
        |  | error |
        |---|---:|
        | tent | 12.3 |
    """
    first, *others = (f"| {' | '.join(line)} |" for line in [head, *rows])
    return "\n".join([first, "|".join(["", "---", *[rule] * (len(head) - 1), ""]), *others])


def table_notes(filled: FilledTable, results: Results) -> list[str]:
    """Return all notes on a table, filled from results: on its data, precision, memory and timing."""
    values = ((entry, filled.values[entry.row, entry.column]) for entry in filled.table.entries)
    found = [(entry, value) for entry, value in values if value.ours is not None]
    sources = (_prepared_notes, _precision_notes, _memory_notes, _timing_notes)
    notes = [note for source in sources for note in source(found, results)]
    return [*relevant_notes([entry for entry, _ in found], results.metadata), *notes]


def relevant_notes(
    entries: Iterable[TableEntry], metadata: Mapping[str, Any], keys: Iterable[str] | None = None
) -> list[str]:
    """Return the notes on a folder's metadata, or on some of its keys, that concern some entries."""
    specs, replaced = [spec for entry in entries for spec in entry.specs], metadata.get("replaced", {})
    named = {name for spec in specs for name in (spec.images, spec.unknown, spec.model)}
    run = {replaced.get(name, name) for name in named}
    relevant = {
        "limit": metadata.get("limit"),
        "replaced": {old: new for old, new in replaced.items() if old in named},
        "prepared on test images": [name for name in metadata.get("prepared on test images", ()) if name in run],
        "frost": metadata.get("frost") if any("frost" in spec.domains for spec in specs) else None,
    }
    return list(metadata_notes({key: value for key, value in relevant.items() if keys is None or key in keys}))


def _prepared_notes(found: _Measured, results: Results) -> Iterator[str]:
    """Values that methods estimated from source data, which the paper does not report."""
    texts = [
        f"{name} {number:.3f} for {entry.row} on {entry.column}"
        for entry, value in found
        for run in value.runs[:1]
        for name, number in results.runs[run].stretches[0].get("found", {}).items()
    ]
    if texts:
        yield f"Estimated from source images: {'; '.join(texts)}."


def _memory_notes(found: _Measured, results: Results) -> Iterator[str]:
    """How memory is computed, and the measured peaks."""
    counted = [(entry, value) for entry, value in found if entry.metric == "memory"]
    if counted:
        yield "Memory is computed from the layer shapes of the network, in MiB, as in TinyTL."
    measures = results.frames.measures.filter(measure="peak").select("run", "domain", "value").drop_nulls()
    peaks = {(run, domain): peak for run, domain, peak in measures.collect().iter_rows()} if counted else {}
    places = ((entry.row, (run.name, entry.domain)) for entry, value in counted for run in value.runs)
    if by_row := {row: peaks[place] / 2**20 for row, place in places if place in peaks}:
        listed = ", ".join(f"{row} {peak:.0f}" for row, peak in by_row.items())
        yield f"Peak memory allocated on the device during a step, in MiB: {listed}."


def _timing_notes(found: _Measured, results: Results) -> Iterator[str]:
    """What steps were timed on, and step times relative to TENT, which are comparable across devices."""
    times = {entry.row: value for entry, value in found if entry.metric == "milliseconds"}
    runs = dict.fromkeys(run for value in times.values() for run in value.runs)
    if timings := dict.fromkeys(_describe_timing(run, results) for run in runs):
        listed = ", ".join(timings)
        yield f"Timed steps per method: {listed}; the paper used another GPU, so only ratios are comparable."
    tent = times.get("tent", Value())
    if tent.ours and tent.reference:
        ours, paper = tent.ours, tent.reference
        texts = (f"{row} {(v.ours or 0) / ours:.2f} ({(v.reference or 0) / paper:.2f})" for row, v in times.items())
        yield f"Step time relative to TENT, in brackets the paper's: {', '.join(texts)}."


def _describe_timing(run: Spec, results: Results) -> str:
    machine = results.runs[run].stretches[0]
    listed = ", ".join(str(machine[key]) for key in ("hardware", "engine", "precision") if machine.get(key) is not None)
    return f"{dict(run.options)['trials']} ({listed})"


def _precision_notes(found: _Measured, results: Results) -> Iterator[str]:
    """Which numbers were computed in bfloat16, and from which round on."""
    firsts: dict[str, dict[str, float | None]] = {}
    for entry, value in found:
        rounds = [first for run in value.runs if (first := _first_bf16_round(run, results)) <= (value.round or 0)]
        firsts.setdefault(entry.row, {})[entry.column] = min(rounds, default=None)
    texts = []
    for row, columns in firsts.items():
        for first in dict.fromkeys(round for round in columns.values() if round is not None):
            alike = [column for column in columns if columns[column] == first]
            where = "" if len(alike) == len(columns) else f" on {', '.join(alike)}"
            texts.append(f"{row}{where}" + ("" if first == 1 else f" from round {first:g} on"))
    if {first for columns in firsts.values() for first in columns.values()} == {1}:
        yield "Computed in bfloat16."
    elif texts:
        yield f"Computed in bfloat16: {'; '.join(texts)}."


def _first_bf16_round(run: Spec, results: Results) -> float:
    """Return the first round of a run in bfloat16; infinity if there is none."""
    visits = 0
    for stretch in results.runs[run].stretches:
        if stretch.get("precision") == "bf16":
            return visits // len(run.domains) + 1 if run.task == "stream" else 1
        visits += stretch["rows"]
    return float("inf")
