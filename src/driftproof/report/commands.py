"""The commands that reproduce a results folder."""

import shlex
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from operator import attrgetter

from driftproof.bench import Results, Spec
from driftproof.bench.plan import RunFilter
from driftproof.bench.runner import RunSettings
from driftproof.bench.store import ARCHIVE_FILE, Row
from driftproof.bench.tables import Suite
from driftproof.report.series import method_order

__all__ = ["reproduction_commands"]

_AXES = ("task", "method", "images", "setting", "seed")
"""The spec fields that a command can filter by."""

_filter_key = attrgetter(*_AXES)


def reproduction_commands(results: Results) -> list[str]:
    """The commands that repeat the runs, compare them with the paper, and write the report.

    Args:
        results: The folder.
    """
    name = results.folder.resolve().name
    # An archive cannot be continued, so its runs go to a folder of another name.
    folder = shlex.quote(f"{name}-again" if (results.folder / ARCHIVE_FILE).exists() else name)
    return [*_run_commands(results, folder), f"driftproof bench compare {folder}", f"driftproof bench report {folder}"]


def _run_commands(results: Results, folder: str) -> Iterator[str]:
    """Commands with the most rounds first: a later command that repeats a run finds it complete."""
    from driftproof.paper import SUITES

    suites = [make() for make in SUITES.values()]
    for suite in suites:
        if suite.command:
            yield from _dedicated_commands(results, suite, folder)
    available = [(suite, runs) for suite in suites if not suite.command and (runs := _available_specs(results, suite))]
    completed = {results.rounds(run) for _, runs in available for run in runs.values()}
    covered: set[Spec] = set()
    for rounds in sorted(completed | {suite.rounds for suite, _ in available}, reverse=True):
        candidates = [
            (suite, runs, {spec: run for spec, run in runs.items() if results.rounds(run) >= rounds})
            for suite, runs in available
        ]
        # First suites that ask for as many rounds, and of those the ones with the fewest missing runs.
        candidates.sort(
            key=lambda candidate: (candidate[0].rounds < rounds, _count_missing(candidate[0], candidate[2]))
        )
        for suite, runs, finished in candidates:
            for part in _partition(suite, _pending_specs(suite, rounds, finished, covered), finished):
                run_filter = _narrowest_filter(suite, part)
                covered.update(runs[spec] for spec in _matching_specs(suite, run_filter) if spec in runs)
                run_options = _run_options(results, suite, [runs[spec] for spec in part])
                options = ("--rounds", str(rounds), *_filter_options(run_filter), *run_options)
                yield f"driftproof bench run {suite.name} {shlex.join(options)} --out {folder}"


def _dedicated_commands(results: Results, suite: Suite, folder: str) -> Iterator[str]:
    """One command per seed, for a suite with its own command."""
    runs = list(_available_specs(results, suite).values())
    for seed in sorted({run.seed for run in runs}):
        rounds = max(results.rounds(run) for run in runs if run.seed == seed)
        options = {"rounds": (rounds, suite.rounds), "seed": (seed, 0), "out": (folder, suite.name)}
        changed = (f"--{name} {value}" for name, (value, default) in options.items() if value != default)
        yield " ".join([str(suite.command), *changed])


def _count_missing(suite: Suite, finished: Mapping[Spec, Spec]) -> int:
    """How many missing runs the commands for the finished runs of a suite would include."""
    parts = _partition(suite, list(finished), finished)
    return sum(
        spec not in finished for part in parts for spec in _matching_specs(suite, _narrowest_filter(suite, part))
    )


def _available_specs(results: Results, suite: Suite) -> dict[Spec, Spec]:
    """The runs of a suite in the folder, by the suite's own spec with their seed."""
    return {replace(spec, seed=run.seed): run for spec in suite.specs() for run in results.seeds(spec)}


def _matching_specs(suite: Suite, run_filter: RunFilter) -> Iterator[Spec]:
    matching = (spec for spec in suite.specs() if run_filter.matches(spec))
    return (replace(spec, seed=seed) for spec in matching for seed in run_filter.seeds)


def _pending_specs(suite: Suite, rounds: int, finished: Mapping[Spec, Spec], covered: Container[Spec]) -> list[Spec]:
    """Finished runs that no command covers yet.

    If the suite asks for fewer rounds, runs are left out whose command would include unfinished ones.
    """
    every = _matching_specs(suite, RunFilter(seeds=list({spec.seed for spec in finished})))
    unfinished = {_filter_key(spec) for spec in every if suite.rounds < rounds and spec not in finished}
    return [spec for spec, run in finished.items() if run not in covered and _filter_key(spec) not in unfinished]


def _partition(suite: Suite, specs: list[Spec], finished: Container[Spec]) -> list[list[Spec]]:
    """Split runs into few parts so that no part's command includes an unfinished run.

    Runs that no filter can separate stay together, finished or not.
    """
    keys, matching = set(map(_filter_key, specs)), _matching_specs(suite, _narrowest_filter(suite, specs))
    if all(spec in finished or _filter_key(spec) in keys for spec in matching):
        return [specs] if specs else []
    splits = [groups for axis in _AXES if len(groups := _split_by_axis(specs, axis)) > 1]
    partitions = [[part for group in groups for part in _partition(suite, group, finished)] for groups in splits]
    return min(partitions, key=len, default=[specs])


def _split_by_axis(specs: list[Spec], axis: str) -> list[list[Spec]]:
    """Group runs by their value on an axis; values with the same runs on the other axes share a group."""
    others = attrgetter(*(other for other in _AXES if other != axis))
    by_value: dict[object, set[object]] = {}
    for spec in specs:
        by_value.setdefault(getattr(spec, axis), set()).add(others(spec))
    groups: dict[object, list[Spec]] = {}
    for spec in specs:
        groups.setdefault(frozenset(by_value[getattr(spec, axis)]), []).append(spec)
    return list(groups.values())


def _narrowest_filter(suite: Suite, specs: list[Spec]) -> RunFilter:
    """The narrowest filter that includes some runs; a run of several methods is selected by its task."""
    every = list(suite.specs())
    task = _single_value((spec.task for spec in specs), (spec.task for spec in every))
    same_task = [spec for spec in every if task in (None, spec.task)]
    methods = _proper_subset((spec.method for spec in specs), (spec.method for spec in same_task))
    return RunFilter(
        methods=[] if "," in "".join(methods) else sorted(methods, key=method_order),
        sets=sorted(_proper_subset((spec.images for spec in specs), (spec.images for spec in same_task))),
        setting=_single_value((spec.setting for spec in specs), (spec.setting for spec in every)),
        task=task,
        seeds=sorted({spec.seed for spec in specs}),
    )


def _filter_options(run_filter: RunFilter) -> Iterator[str]:
    if run_filter.task:
        yield from ("--task", run_filter.task)
    if run_filter.methods:
        yield from ("--methods", ",".join(run_filter.methods))
    if run_filter.sets:
        yield from ("--sets", ",".join(run_filter.sets))
    if run_filter.setting:
        yield f"--{run_filter.setting}"
    if run_filter.seeds != [0]:
        yield from ("--seeds", ",".join(map(str, run_filter.seeds)))


def _run_options(results: Results, suite: Suite, runs: list[Spec]) -> Iterator[str]:
    """Options from the metadata of the folder and from the conditions of the runs."""
    metadata = results.metadata
    trials = {int(dict(run.options)["trials"] or 0) for run in runs if run.task == "costs"}
    if trials and not trials & {dict(spec.options).get("trials") for spec in suite.specs()}:
        yield from ("--trials", str(max(trials)))
    if metadata.get("limit") is not None:
        yield from ("--limit", str(metadata["limit"]))
    for theirs, ours in (metadata.get("replaced") or {}).items():
        yield from ("--replace", f"{theirs}={ours}")
    for name in metadata.get("prepared on test images") or ():
        yield from ("--prepare-on-test", name)
    if metadata.get("frost") == "made up":
        yield "--procedural-frost"
    yield from _execution_options([row for run in runs for row in results.runs[run].conditions])


def _execution_options(conditions: list[Row]) -> Iterator[str]:
    """Settings such as engine and precision, if all rows share them."""
    for name, default in asdict(RunSettings()).items():
        values = {row.get(name, default) for row in conditions}
        if len(values) == 1 and (value := values.pop()) != default:
            yield from (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))


def _proper_subset(values: Iterable[str], known: Iterable[str]) -> set[str]:
    """The values as a set; empty if they include all known ones."""
    chosen = set(values)
    return chosen if chosen < set(known) else set()


def _single_value(values: Iterable[str], known: Iterable[str]) -> str | None:
    chosen = _proper_subset(values, known)
    return chosen.pop() if len(chosen) == 1 else None
