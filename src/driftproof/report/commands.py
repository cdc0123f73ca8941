"""The commands that led to a results folder, as far as the folder tells."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from driftproof.bench import SUITES, Results, Spec
from driftproof.bench.runner import Settings
from driftproof.bench.store import ARCHIVED, Row
from driftproof.bench.tables import Suite
from driftproof.report.lines import method_place

__all__ = ["commands"]


def commands(results: Results) -> list[str]:
    """What to run to get the same cells, to compare them with the paper, and to write them up.

    Args:
        results: The folder.
    """
    name = results.folder.resolve().name
    # Nothing can go on from an archive, so the same is measured beside it.
    measured = shlex.quote(f"{name}-again" if (results.folder / ARCHIVED).exists() else name)
    folder = shlex.quote(name)
    return [*_runs(results, measured), f"driftproof bench compare {folder}", f"driftproof bench report {folder}"]


def _runs(results: Results, folder: str) -> Iterator[str]:
    told: set[Spec] = set()
    for name, make in SUITES.items():
        suite = make()
        specs = [spec for spec in suite.specs() if results.seeds(spec)]
        cells = [run for spec in specs for run in results.seeds(spec)]
        if told.issuperset(cells):
            continue
        told.update(cells)
        for together in [specs] if suite.command else _at_once(suite, specs):
            run = f"driftproof bench run {name} {shlex.join(_options(results, suite, together))} --out {folder}"
            yield suite.command or run


def _at_once(suite: Suite, specs: list[Spec]) -> list[list[Spec]]:
    """What one command can ask for: no method can be chosen together with a cell that compares several."""
    if {spec.method for spec in specs} == {spec.method for spec in suite.specs()}:
        return [specs]
    return [[spec for spec in specs if spec.task == task] for task in dict.fromkeys(spec.task for spec in specs)]


def _options(results: Results, suite: Suite, specs: list[Spec]) -> Iterator[str]:
    everything, shared = list(suite.specs()), results.shared
    cells = [run for spec in specs for run in results.seeds(spec)]
    yield from ("--rounds", str(max(results.rounds(cell) for cell in cells)))
    if tasks := _fewer((spec.task for spec in specs), (spec.task for spec in everything)):
        yield from ("--task", *tasks)
    alike = [spec for spec in everything if not tasks or spec.task in tasks]
    if methods := _fewer((spec.method for spec in specs), (spec.method for spec in alike)):
        yield from ("--methods", ",".join(sorted(methods, key=method_place)))
    if sets := _fewer((spec.images for spec in specs), (spec.images for spec in alike)):
        yield from ("--sets", ",".join(sorted(sets)))
    if settings := _fewer((spec.setting for spec in specs), (spec.setting for spec in everything)):
        yield from (f"--{setting}" for setting in settings)
    if (seeds := {cell.seed for cell in cells}) != {0}:
        yield from ("--seeds", ",".join(map(str, sorted(seeds))))
    trials = {int(dict(cell.options)["trials"] or 0) for cell in cells if cell.task == "costs"}
    if trials and not trials & {dict(spec.options).get("trials") for spec in everything}:
        yield from ("--trials", str(max(trials)))
    if shared.get("limit") is not None:
        yield from ("--limit", str(shared["limit"]))
    for theirs, ours in (shared.get("replaced") or {}).items():
        yield from ("--replace", f"{theirs}={ours}")
    for name in shared.get("prepared on test images") or ():
        yield from ("--prepare-on-test", name)
    yield from _way([row for cell in cells for row in results.cells[cell].conditions])


def _way(conditions: list[Row]) -> Iterator[str]:
    """How the rows were computed, as far as all were computed alike: rounding is part of a number."""
    for name, default in asdict(Settings()).items():
        ways = {row.get(name, default) for row in conditions}
        if len(ways) == 1 and (way := ways.pop()) != default:
            yield from (f"--{name.replace('_', '-')}", *([] if way is True else [str(way)]))


def _fewer(found: Iterable[str], known: Iterable[str]) -> set[str]:
    there = set(found)
    return there if there < set(known) else set()
