"""Write the leaderboard page from results."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from driftproof.bench.results import Results, Value
from driftproof.bench.spec import Spec
from driftproof.bench.tables import Suite, Table, TableEntry
from driftproof.leaderboard.suites import LIMITS, SEEDS, SUITES
from driftproof.paper.comparison import format_markdown
from driftproof.report.text import format_duration, format_number

__all__ = ["render_page"]

_INTRODUCTION = """\
# Leaderboard

Test-time adaptation among images of unknown classes: WRN-40-2 (AugMix), fifteen corruptions at severity 5 one after the
other, batches of 200, never reset. Half of every open batch are unknown images, SVHN-C unless the title says otherwise,
under the same corruption. A round goes through all corruptions once. Methods of the paper have its hyper-parameters,
all others the defaults of their functions. Rows of `sentinel` that are marked with a star are of an earlier default,
whose answer included the second network's opinion (`members="network+mirror+detector+source"`). Rows of `adapt`
learn where the cap of its statistics is 0.35 of their share or more.

Every number is measured while adapting and is a mean over the corruptions, in %. **Error** is over known images.
**AUROC**, **FPR@95**, **H-score** (harmonic mean of accuracy and AUROC) and **OSCR** are by the method's own score: the
one it publishes (PAF-KIP and RoTTA energy, STAMP entropy, UniEnt the cosine to the nearest class, `sentinel` the energy
of its second network; `adapt` has the library's default), else the confidence difference where it compares with the
source network, else one minus the largest probability. Next to it is the AUROC by the energy of the answer. ± is the
standard deviation over seeds; `@3` marks a number of round 3 in a table that shows a later one. Bold is the best of a
column. What the GPU time did not reach is marked: `not run` is no number, and `*` one of the first images of each
corruption alone. A learning method has taken fewer steps by then, so a method that collapses later looks better than it
is; such rows come after the others. Methods that have neither all errors nor half of a table's numbers are listed below
it, with the command that runs them. Runs of the [paper's tables](reproducing.md) stand in where a method was run there
only; they measured no scores (–)."""


class _Cell(NamedTuple):
    """A number and the results that it comes from."""

    value: Value
    results: Results | None

    @property
    def is_shown(self) -> bool:
        """Whether the run got so far; one of round 1 in place of a later one stands in an earlier table already."""
        return self.value.complete or (self.value.round or 0) > 1

    def rank(self, limit: int | None) -> tuple[int, ...]:
        """What can be shown comes first, then streams as long as the suite's, whole, complete, of more images."""
        here = None if self.results is None else self.results.metadata.get("limit")
        value = self.value
        by_images = here == limit, here is None, value.complete, here or 0
        return self.is_shown, value.round is not None, *by_images, value.round or 0, value.seeds


def render_page(archives: Sequence[Results]) -> str:
    """Render the page from results folders or archives; the best source of each number counts."""
    suites = [build() for build in SUITES.values()]
    parts = [_INTRODUCTION, _describe_costs(suites, archives)]
    for suite in suites:
        parts += [f"## {suite.title}", suite.note, _command(suite.name)]
        parts += [_render_table(suite, table, archives) for table in suite.tables]
    return "\n\n".join(parts) + "\n"


def _describe_costs(suites: Sequence[Suite], archives: Sequence[Results]) -> str:
    """Sum up the measured time of all runs of the suites, each once."""
    listed = {run for suite in suites for spec in suite.specs() for each in archives for run in each.seeds(spec)}
    seconds: dict[tuple[str, str], float] = {}
    for results in archives:
        known = {results.runs[run].name for run in listed if run in results.runs}
        for run, time, machine in results.frames.runs.select("run", "seconds", "hardware").iter_rows():
            if run in known:
                seconds[run, machine] = max(seconds.get((run, machine), 0.0), time)
    by_machine: dict[str, float] = {}
    for (_, machine), time in seconds.items():
        by_machine[machine] = by_machine.get(machine, 0.0) + time
    times = "; ".join(f"{format_duration(time)} on {machine}" for machine, time in sorted(by_machine.items()))
    whole = [suite.name for suite in suites if suite.name not in LIMITS]
    return (
        f"The times of all {len(listed)} runs add up to {times or 'nothing yet'}. Runs that share a device wait for "
        "each other, so the device needed less. One command runs all suites that stream all images; those that stream "
        f"some of them need a folder of their own:\n\n{_command(whole[0], ' ' + ' '.join(whole[1:]))}\n\n"
        "It resumes what is there, and takes any part with `--methods`, `--images`, `--open` or `--closed`, `--rounds` "
        "and `--seeds` (`--seeds 1,2` adds two). `benchmarks/leaderboard.py` runs such parts in several processes on "
        "one device, within a time limit. `driftproof bench leaderboard FOLDER…` writes this page from what was run."
    )


def _render_table(suite: Suite, table: Table, archives: Sequence[Results]) -> str:
    entries = {(entry.row, entry.column): entry for entry in table.entries}
    rows, columns = (list(dict.fromkeys(place[axis] for place in entries)) for axis in (0, 1))
    limit = LIMITS.get(suite.name)
    if suite.name in SEEDS:  # one seed of whole streams is no mean of three
        archives = [results for results in archives if results.metadata.get("limit") == limit]
    rank = partial(_Cell.rank, limit=limit)
    cells = {
        place: max((_Cell(_value(results, entry), results) for results in archives), key=rank)
        if archives
        else _Cell(Value(wanted=entry.round), None)
        for place, entry in entries.items()
    }
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
        [row, *(_format(cells[row, column], entries[row, column].metric, best[column]) for column in columns)]
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


def _explain_parts(cells: Mapping[tuple[str, str], _Cell]) -> Iterator[str]:
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


def _list_missing(
    suite: Suite, table: Table, cells: Mapping[tuple[str, str], _Cell], rows: Sequence[str]
) -> Iterator[str]:
    seeds = len(SEEDS.get(suite.name, "0").split(","))
    done = {place: cell.value.complete and cell.value.seeds >= seeds for place, cell in cells.items()}
    missing = [row for row in rows if not all(whole for place, whole in done.items() if place[0] == row)]
    if missing:
        names = "every method" if len(missing) == len(rows) else ", ".join(missing)
        chosen = _choose(table, missing)
        yield f"Not run, or not to the end: {names}. To run what is missing:\n\n{_command(suite.name, chosen)}"


def _choose(table: Table, rows: Sequence[str]) -> str:
    """The options that choose the runs of some rows; runs that time several methods are not divided."""
    specs = {spec.method: spec for entry in table.entries if entry.row in rows for spec in entry.specs}
    methods = "" if any(spec.task == "costs" for spec in specs.values()) else f" --methods {','.join(specs)}"
    return f"{methods} --images {next(iter(specs.values())).images} --rounds {table.entries[0].round}"


def _command(suite: str, chosen: str = "") -> str:
    limit = LIMITS.get(suite)
    out = "runs/leaderboard" if limit is None else f"runs/leaderboard-{limit} --limit {limit}"
    out += f" --seeds {SEEDS[suite]}" if suite in SEEDS else ""
    options = f"--data data --weights weights --out {out} --device cuda --precision bf16 --channels-last"
    return f"```bash\ndriftproof bench run {suite}{chosen} {options}\n```"


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
