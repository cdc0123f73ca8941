"""The commands that led to a results folder, as far as the folder tells."""

import shlex
from collections.abc import Iterable, Iterator

from driftproof.bench import SUITES, Results, Spec
from driftproof.bench.tables import Suite
from driftproof.report.lines import method_place

__all__ = ["commands"]


def commands(results: Results) -> list[str]:
    """What to run to get the same cells, to compare them with the paper, and to write them up.

    Args:
        results: The folder.
    """
    folder = shlex.quote(results.folder.resolve().name)
    return [*_runs(results, folder), f"driftproof bench compare {folder}", f"driftproof bench report {folder}"]


def _runs(results: Results, folder: str) -> Iterator[str]:
    told: set[Spec] = set()
    for name, make in SUITES.items():
        suite = make()
        cells = [run for spec in suite.specs() for run in results.seeds(spec)]
        if not told.issuperset(cells):
            told.update(cells)
            run = f"driftproof bench run {name} {shlex.join(_options(results, suite, cells))} --out {folder}"
            yield suite.command or run


def _options(results: Results, suite: Suite, cells: list[Spec]) -> Iterator[str]:
    everything, shared = list(suite.specs()), results.shared
    yield from ("--rounds", str(max(results.rounds(cell) for cell in cells)))
    if tasks := _fewer((cell.task for cell in cells), (spec.task for spec in everything)):
        yield from ("--task", *tasks)
    elif methods := _fewer((cell.method for cell in cells), (spec.method for spec in everything)):
        yield from ("--methods", ",".join(sorted(methods, key=method_place)))
    if settings := _fewer((cell.setting for cell in cells), (spec.setting for spec in everything)):
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


def _fewer(found: Iterable[str], known: Iterable[str]) -> set[str]:
    there = set(found)
    return there if there < set(known) else set()
