"""Write the leaderboard page from results."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from driftproof.bench.results import Results, Value
from driftproof.bench.spec import Spec
from driftproof.bench.tables import Suite, Table, TableEntry
from driftproof.leaderboard.prose import (
    INTRODUCTION,
    MEASURES,
    SUMMARY,
    describe_costs,
    describe_paper_rows,
    fill_numbers,
    format_command,
)
from driftproof.leaderboard.suites import FINDINGS, LIMITS, SEEDS, SUITES
from driftproof.paper.comparison import format_markdown
from driftproof.report.text import format_number

__all__ = ["render_page"]


class _Cell(NamedTuple):
    """A number and the results that it comes from."""

    value: Value
    results: Results | None

    @property
    def is_shown(self) -> bool:
        """Whether the run got so far; one of round 1 in place of a later one stands in an earlier table already."""
        return self.value.complete or (self.value.round or 0) > 1

    def rank(self, limit: int | None) -> tuple[int, ...]:
        """Numbers to show come first, then streams as long as the suite's, whole, complete, of more images."""
        here = None if self.results is None else self.results.metadata.get("limit")
        value = self.value
        by_images = here == limit, here is None, value.complete, here or 0
        has_number = self.is_shown and value.ours is not None
        return has_number, self.is_shown, value.round is not None, *by_images, value.round or 0, value.seeds


Cells = Mapping[tuple[str, str], _Cell]
"""The numbers of a table by row and column."""


def render_page(archives: Sequence[Results]) -> str:
    """Render the page from results folders or archives; the best source of each number counts."""
    suites = [build() for build in SUITES.values()]
    cells = {table.name: _find_cells(suite, table, archives) for suite in suites for table in suite.tables}
    values = {name: {place: cell.value for place, cell in found.items()} for name, found in cells.items()}
    parts = [INTRODUCTION, fill_numbers(SUMMARY, values), MEASURES, describe_costs(suites, archives)]
    for suite in suites:
        notes = filter(None, (suite.note, fill_numbers(FINDINGS.get(suite.name, ""), values)))
        parts += [f"## {suite.title}", " ".join(notes), format_command(suite.name)]
        parts += [_render_table(suite, table, cells[table.name]) for table in suite.tables]
    return "\n\n".join([*parts, describe_paper_rows(archives)]) + "\n"


def _find_cells(suite: Suite, table: Table, archives: Sequence[Results]) -> Cells:
    limit = LIMITS.get(suite.name)
    if suite.name in SEEDS:  # one seed of whole streams is no mean of three
        archives = [results for results in archives if results.metadata.get("limit") == limit]
    rank = partial(_Cell.rank, limit=limit)
    return {
        (entry.row, entry.column): max((_Cell(_value(results, entry), results) for results in archives), key=rank)
        if archives
        else _Cell(Value(wanted=entry.round), None)
        for entry in table.entries
    }


def _render_table(suite: Suite, table: Table, cells: Cells) -> str:
    metrics = {(entry.row, entry.column): entry.metric for entry in table.entries}
    rows, columns = (list(dict.fromkeys(place[axis] for place in cells)) for axis in (0, 1))
    ranked = next((column for column in columns if column in ("Error (open)", "Error (50 %)")), columns[0])
    measured = sorted(
        (row for row in rows if _has_enough({column: cells[row, column] for column in columns})),
        key=lambda row: (
            not cells[row, ranked].value.complete,
            _is_part(cells[row, ranked]),
            _number(cells[row, ranked]),
        ),
    )
    best = {column: _best(table, column, [cells[row, column] for row in measured]) for column in columns}
    lines = [
        [row, *(_format(cells[row, column], metrics[row, column], best[column]) for column in columns)]
        for row in measured
    ]
    parts = [f"### {table.title}", *([format_markdown(["", *columns], lines)] if lines else [])]
    parts += _explain_parts({place: cell for place, cell in cells.items() if place[0] in measured})
    return "\n\n".join([*parts, *_list_missing(suite, table, cells, rows)])


def _value(results: Results, entry: TableEntry) -> Value:
    """The number of an entry; an error may also be of a run that measured other scores, which change no prediction."""
    value = results.value(entry)
    if value.complete or entry.metric != "error":
        return value
    (spec,) = entry.specs
    others = [
        run for run in results.runs if run.method == spec.method and _without_scores(run) == _without_scores(spec)
    ]
    found = [value, *(results.value(replace(entry, specs=(run,))) for run in others)]
    return max(found, key=lambda one: one.round or 0)


def _without_scores(spec: Spec) -> Spec:
    options = tuple((name, value) for name, value in spec.options if name != "novelty")
    return replace(spec, options=options, measures=())


def _explain_parts(cells: Cells) -> Iterator[str]:
    """Say how many images the marked numbers are of, and where they differ in that, whose numbers."""
    rows: dict[int, list[str]] = {}
    for (row, _), cell in cells.items():
        if cell.results is not None and _is_part(cell):
            rows.setdefault(cell.results.metadata["limit"], []).append(row)
    shown = [f"the first {limit:,} images" for limit in sorted(rows)]
    if len(rows) > 1:
        shown = [
            f"{text} ({', '.join(dict.fromkeys(rows[limit]))})" for text, limit in zip(shown, sorted(rows), strict=True)
        ]
    if rows:
        yield f"\\* on {' or '.join(shown)} of each corruption."


def _list_missing(suite: Suite, table: Table, cells: Cells, rows: Sequence[str]) -> Iterator[str]:
    seeds = len(SEEDS.get(suite.name, "0").split(","))
    done = {place: _is_done(cell.value, seeds) for place, cell in cells.items()}
    missing = [row for row in rows if not all(whole for place, whole in done.items() if place[0] == row)]
    if missing:
        names = "every method" if len(missing) == len(rows) else ", ".join(missing)
        command = format_command(suite.name, _choose(table, missing))
        yield f"Not run, not to the end, or without scores: {names}. To run what is missing:\n\n{command}"


def _is_done(value: Value, seeds: int) -> bool:
    return value.complete and value.ours is not None and value.seeds >= seeds


def _choose(table: Table, rows: Sequence[str]) -> str:
    """The options that choose the runs of some rows; runs that time several methods are not divided."""
    specs = {spec.method: spec for entry in table.entries if entry.row in rows for spec in entry.specs}
    methods = "" if any(spec.task == "costs" for spec in specs.values()) else f" --methods {','.join(specs)}"
    return f"{methods} --images {next(iter(specs.values())).images} --rounds {table.entries[0].round}"


def _has_enough(row: Mapping[str, _Cell]) -> bool:
    """Whether a row has all errors, or half of its numbers."""
    errors = [cell for column, cell in row.items() if column.startswith("Error")]
    shown = sum(cell.is_shown for cell in row.values())
    return (bool(errors) and all(cell.is_shown for cell in errors)) or 2 * shown >= len(row)


def _number(cell: _Cell) -> float:
    return math.inf if cell.value.ours is None else cell.value.ours


def _is_part(cell: _Cell) -> bool:
    return cell.value.ours is not None and cell.results is not None and cell.results.is_subset


def _best(table: Table, column: str, cells: Sequence[_Cell]) -> float | None:
    complete = [cell for cell in cells if cell.value.ours is not None and cell.value.complete]
    whole = [cell for cell in complete if not _is_part(cell)]
    # Numbers of a part of the images compete where there are hardly any others.
    compared = whole if len(whole) > 1 else complete
    numbers = [cell.value.ours for cell in compared if cell.value.ours is not None]
    return (min if table.is_lower_better(column) else max)(numbers) if len(numbers) > 1 else None


def _format(cell: _Cell, metric: str, best: float | None) -> str:
    value = cell.value
    if value.ours is None:
        return "not run" if value.round is None else "–"
    text = format_number(value.ours, {"milliseconds": 1, "peak_mebibytes": 0}.get(metric, 2))
    deviation = "" if value.deviation is None else f" ±{format_number(value.deviation, 2)}"
    text = f"**{text}**" if value.complete and value.ours == best else text
    return f"{text}{deviation}{'' if value.complete else f' @{value.round}'}{' *' * _is_part(cell)}"
