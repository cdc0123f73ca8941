"""The commands that led to a results folder, as far as the folder tells."""

import shlex
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from operator import attrgetter

from driftproof.bench import SUITES, Results, Spec
from driftproof.bench.plan import RunFilter
from driftproof.bench.runner import RunSettings
from driftproof.bench.store import ARCHIVE_FILE, Row
from driftproof.bench.tables import Suite
from driftproof.report.series import method_order

__all__ = ["reproduction_commands"]

_AXES = ("task", "method", "images", "setting", "seed")
"""What a command can choose cells by."""

_filter_key = attrgetter(*_AXES)


def reproduction_commands(results: Results) -> list[str]:
    """What to run to get the same cells, to compare them with the paper, and to write them up.

    Args:
        results: The folder.
    """
    name = results.folder.resolve().name
    # Nothing can go on from an archive, so the same is measured beside it.
    folder = shlex.quote(f"{name}-again" if (results.folder / ARCHIVE_FILE).exists() else name)
    return [*_run_commands(results, folder), f"driftproof bench compare {folder}", f"driftproof bench report {folder}"]


def _run_commands(results: Results, folder: str) -> Iterator[str]:
    """The furthest first: what a later command asks for once more, with fewer rounds, is there by then."""
    suites = [make() for make in SUITES.values()]
    for suite in suites:
        if suite.command:
            yield from _dedicated_commands(results, suite, folder)
    there = [(suite, cells) for suite in suites if not suite.command and (cells := _available_specs(results, suite))]
    reached = {results.rounds(run) for _, cells in there for run in cells.values()}
    told: set[Spec] = set()
    for rounds in sorted(reached | {suite.rounds for suite, _ in there}, reverse=True):
        come = [
            (suite, cells, {cell: run for cell, run in cells.items() if results.rounds(run) >= rounds})
            for suite, cells in there
        ]
        # First who wants as many, and of those who asks for the fewest cells that are not there.
        for suite, cells, as_far in sorted(come, key=lambda one: (one[0].rounds < rounds, _count_missing(one[0], one[2]))):
            for part in _partition(suite, _pending_specs(suite, rounds, as_far, told), as_far):
                choice, runs = _narrowest_filter(suite, part), [cells[cell] for cell in part]
                told.update(cells[cell] for cell in _matching_specs(suite, choice) if cell in cells)
                options = ("--rounds", str(rounds), *_filter_options(choice), *_run_options(results, suite, runs))
                yield f"driftproof bench run {suite.name} {shlex.join(options)} --out {folder}"


def _dedicated_commands(results: Results, suite: Suite, folder: str) -> Iterator[str]:
    """One for each seed, of a suite that has a command of its own."""
    runs = list(_available_specs(results, suite).values())
    for seed in sorted({run.seed for run in runs}):
        rounds = max(results.rounds(run) for run in runs if run.seed == seed)
        said = {"rounds": (rounds, suite.rounds), "seed": (seed, 0), "out": (folder, suite.name)}
        yield " ".join(
            [str(suite.command), *(f"--{name} {own}" for name, (own, usual) in said.items() if own != usual)]
        )


def _count_missing(suite: Suite, there: Mapping[Spec, Spec]) -> int:
    """How many cells that are not there a suite would be asked for along with those that are."""
    parts = _partition(suite, list(there), there)
    return sum(cell not in there for part in parts for cell in _matching_specs(suite, _narrowest_filter(suite, part)))


def _available_specs(results: Results, suite: Suite) -> dict[Spec, Spec]:
    """What is there of a suite: by the suite's own cell, of each seed, the one of the folder."""
    return {replace(spec, seed=run.seed): run for spec in suite.specs() for run in results.seeds(spec)}


def _matching_specs(suite: Suite, choice: RunFilter) -> Iterator[Spec]:
    return (replace(spec, seed=seed) for spec in suite.specs() if choice.matches(spec) for seed in choice.seeds)


def _pending_specs(suite: Suite, rounds: int, as_far: Mapping[Spec, Spec], told: Container[Spec]) -> list[Spec]:
    """What to ask a suite for; more rounds than it wants only where nothing is taken along that has not come as far."""
    everything = _matching_specs(suite, RunFilter(seeds=list({cell.seed for cell in as_far})))
    behind = {_filter_key(cell) for cell in everything if suite.rounds < rounds and cell not in as_far}
    return [cell for cell, run in as_far.items() if run not in told and _filter_key(cell) not in behind]


def _partition(suite: Suite, cells: list[Spec], there: Container[Spec]) -> list[list[Spec]]:
    """Cells in few parts, each for a command that asks for no cell that is not there.

    Cells that differ in nothing that can be chosen by are asked for together, there or not.
    """
    places = set(map(_filter_key, cells))
    if all(cell in there or _filter_key(cell) in places for cell in _matching_specs(suite, _narrowest_filter(suite, cells))):
        return [cells] if cells else []
    splits = [groups for axis in _AXES if len(groups := _split_by_axis(cells, axis)) > 1]
    tried = [[part for group in groups for part in _partition(suite, group, there)] for groups in splits]
    return min(tried, key=len, default=[cells])


def _split_by_axis(cells: list[Spec], axis: str) -> list[list[Spec]]:
    """Cells apart along an axis, together where the same is there beside them along the others."""
    others = attrgetter(*(other for other in _AXES if other != axis))
    beside: dict[object, set[object]] = {}
    for cell in cells:
        beside.setdefault(getattr(cell, axis), set()).add(others(cell))
    groups: dict[object, list[Spec]] = {}
    for cell in cells:
        groups.setdefault(frozenset(beside[getattr(cell, axis)]), []).append(cell)
    return list(groups.values())


def _narrowest_filter(suite: Suite, cells: list[Spec]) -> RunFilter:
    """The narrowest that a command can express; a cell that compares several methods is chosen by its task."""
    everything = list(suite.specs())
    task = _single_value((cell.task for cell in cells), (spec.task for spec in everything))
    alike = [spec for spec in everything if task in (None, spec.task)]
    methods = _proper_subset((cell.method for cell in cells), (spec.method for spec in alike))
    return RunFilter(
        methods=[] if "," in "".join(methods) else sorted(methods, key=method_order),
        sets=sorted(_proper_subset((cell.images for cell in cells), (spec.images for spec in alike))),
        setting=_single_value((cell.setting for cell in cells), (spec.setting for spec in everything)),
        task=task,
        seeds=sorted({cell.seed for cell in cells}),
    )


def _filter_options(choice: RunFilter) -> Iterator[str]:
    if choice.task:
        yield from ("--task", choice.task)
    if choice.methods:
        yield from ("--methods", ",".join(choice.methods))
    if choice.sets:
        yield from ("--sets", ",".join(choice.sets))
    if choice.setting:
        yield f"--{choice.setting}"
    if choice.seeds != [0]:
        yield from ("--seeds", ",".join(map(str, choice.seeds)))


def _run_options(results: Results, suite: Suite, runs: list[Spec]) -> Iterator[str]:
    """What the folder shares, and how the runs were made."""
    shared = results.metadata
    trials = {int(dict(run.options)["trials"] or 0) for run in runs if run.task == "costs"}
    if trials and not trials & {dict(spec.options).get("trials") for spec in suite.specs()}:
        yield from ("--trials", str(max(trials)))
    if shared.get("limit") is not None:
        yield from ("--limit", str(shared["limit"]))
    for theirs, ours in (shared.get("replaced") or {}).items():
        yield from ("--replace", f"{theirs}={ours}")
    for name in shared.get("prepared on test images") or ():
        yield from ("--prepare-on-test", name)
    if shared.get("frost") == "made up":
        yield "--procedural-frost"
    yield from _execution_options([row for run in runs for row in results.runs[run].conditions])


def _execution_options(conditions: list[Row]) -> Iterator[str]:
    """How the rows were computed, as far as all were computed alike: rounding is part of a number."""
    for name, default in asdict(RunSettings()).items():
        ways = {row.get(name, default) for row in conditions}
        if len(ways) == 1 and (way := ways.pop()) != default:
            yield from (f"--{name.replace('_', '-')}", *([] if way is True else [str(way)]))


def _proper_subset(found: Iterable[str], known: Iterable[str]) -> set[str]:
    there = set(found)
    return there if there < set(known) else set()


def _single_value(found: Iterable[str], known: Iterable[str]) -> str | None:
    there = _proper_subset(found, known)
    return there.pop() if len(there) == 1 else None
