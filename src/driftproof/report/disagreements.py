"""What is far from the paper, how much of that is in network and images, and what experiments say of the rest."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from driftproof.bench import Measured, Results, Spec, Value
from driftproof.bench.suites.settings import OF_THE_FILTER, options_for
from driftproof.bench.tables import Entry, Table
from driftproof.report.caveats import caveats, concerning
from driftproof.report.markdown import markdown_table
from driftproof.report.numbers import number, signed

__all__ = ["FAR_OFF", "far_off"]

FAR_OFF = 3.0
"""Percentage points from the paper that call for an explanation."""

_HEAD = ["table", "method", "setting", "ours", "paper", "difference", "BN Adapt's", "what experiments change"]
_LEGEND = (
    "BN Adapt learns nothing: its difference is that of the network and the images. The last column tells by how many "
    "points the error changes where choices are made differently, on the held-out or milder corruptions of the table "
    "named, in the last round that both have reached in about as many domains as the number took or fewer; of a score, "
    "what the error of the same run is. Numbers from an earlier round than the paper's are not listed."
)

_Filled = tuple[Measured, Results]
"""A table, and the archive that fills it."""


def far_off(everything: Sequence[Results]) -> str:
    """Every number that is far from the paper's, as a table in Markdown; runs on only some images stay out.

    Args:
        everything: The archives.
    """
    whole = [results for results in everything if not results.limited]
    tables = [(measured, results) for results in whole for measured in results.tables()]
    found: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for measured, results in tables:
        for told, setting in _far_off(measured, results, tables):
            found.setdefault(told, []).append((f"`{measured.table.name}`", setting))
    rows = []
    for (method, *numbers), places in found.items():
        names, settings = (", ".join(dict.fromkeys(words)) for words in zip(*places, strict=True))
        rows.append([names, method, settings, *numbers])
    return f"{markdown_table(_HEAD, rows)}\n\n{_LEGEND}" if rows else "None."


def _far_off(measured: Measured, results: Results, tables: Sequence[_Filled]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is told of each such number, and its setting; of one that several tables show, the same is told."""
    for entry in measured.table.entries:
        value = measured.values[entry.row, entry.column]
        if measured.table.unit != "mixed" and _is_far_off(value):
            bystander = measured.values.get(("bn_adapt", entry.column), Value()).difference
            numbers = number(value.ours or 0.0, 2), number(value.paper or 0.0, 2), signed(value.difference or 0.0, 2)
            beside = "" if bystander is None else signed(bystander, 2)
            rest = (value.difference or 0.0) - (bystander or 0.0)
            yield (entry.row, *numbers, beside, _told(entry, results, tables, rest)), entry.column


def _is_far_off(value: Value) -> bool:
    return value.complete and value.difference is not None and abs(value.difference) > FAR_OFF


def _told(entry: Entry, results: Results, tables: Sequence[_Filled], rest: float) -> str:
    """What is known of the reasons for a number, of which so much is not in network and images."""
    apart = caveats({"replaced": concerning(entry.specs, results.shared)["replaced"]})
    return "<br>".join([*apart, *_reasons(entry, results, tables, rest)])


def _reasons(entry: Entry, results: Results, tables: Sequence[_Filled], rest: float) -> list[str]:
    if all(results.is_steady(run) for spec in entry.specs for run in results.seeds(spec)):
        return ["learns nothing"]
    method = entry.specs[0].method
    tried = _tried(tables, entry, method) or _errors(results, entry)
    if tried or abs(rest) <= FAR_OFF:
        return tried or ["BN Adapt is as far off"]
    return _tried(tables, entry, method.partition("+")[0]) or ["not tried yet"]


def _errors(results: Results, entry: Entry) -> list[str]:
    """What else is measured of a run goes with its error in the same round: how far off that is."""
    told = []
    for measured in results.tables() if entry.measure != "error" else ():
        for other in measured.table.entries:
            value = measured.values[other.row, other.column]
            run = (entry.specs, "error", entry.round, entry.domain)
            if (other.specs, other.measure, other.round, other.domain) == run and value.difference is not None:
                off = f"{number(value.ours or 0.0, 2)}, the paper's {number(value.paper or 0.0, 2)}"
                told.append(f"`{measured.table.name}`: the error of {other.row} is {off}")
    return told


def _tried(tables: Sequence[_Filled], entry: Entry, method: str) -> list[str]:
    """What the experiments of a method change, by table and round; a change that two tables show is told once."""
    told: dict[str, list[str]] = {}
    seen: set[tuple[tuple[Spec, ...], int]] = set()
    for measured, results in tables:
        for other, usual in _experiments(measured.table, entry, method):
            change, round = _change(results, other, usual)
            if change is not None and (other.specs, round) not in seen:
                seen.add((other.specs, round))
                told.setdefault(f"`{measured.table.name}`, round {round}", []).append(f"{other.row} {signed(change)}")
    return [f"{where}: {'; '.join(changes)}" for where, changes in told.items()]


def _experiments(table: Table, entry: Entry, method: str) -> Iterator[tuple[Entry, Entry]]:
    """What a table tries of a method where a number was taken, each beside the same with that number's choices."""
    if not table.name.startswith("choice_"):
        return
    entries = [
        replace(other, round=min(other.round, _as_many(entry, other)))
        for other in table.entries
        if other.specs[0].method == method and _bears_on(other, entry)
    ]
    usual = {other.column: other for other in entries if not _choice(other, entry)}
    yield from ((other, usual[other.column]) for other in entries if _choice(other, entry) and other.column in usual)


def _as_many(entry: Entry, experiment: Entry) -> int:
    """How many rounds of an experiment are about as many domains as a number comes after."""
    return math.ceil(entry.round * len(entry.specs[0].domains) / len(experiment.specs[0].domains))


def _choice(experiment: Entry, entry: Entry) -> set[str]:
    """What an experiment chooses otherwise than a number; or than is usual, where it is of a part of the method."""
    tried, spec = experiment.specs[0], entry.specs[0]
    usual = dict(spec.options) if tried.method == spec.method else options_for(tried.method, tried.images)
    chosen = dict(tried.options)
    changed = {key for key in (chosen | usual).keys() - {"novelty"} if chosen.get(key) != usual.get(key)}
    return changed if tried.batch_size == spec.batch_size else {*changed, "batch_size"}


def _bears_on(experiment: Entry, entry: Entry) -> bool:
    """Whether it is on the same images, and a choice there is: a selection takes the place of a method's filter."""
    tried, spec = experiment.specs[0], entry.specs[0]
    filtering = "+" in spec.method and _choice(experiment, entry) & set(OF_THE_FILTER)
    alike = (tried.images, tried.setting, experiment.measure) == (spec.images, spec.setting, entry.measure)
    return alike and not filtering


def _change(results: Results, entry: Entry, beside: Entry) -> tuple[float | None, int]:
    """By how much two entries differ, and in which round."""
    ours, usual = results.together([entry, beside])
    if ours.ours is None or usual.ours is None:
        return None, 0
    return ours.ours - usual.ours, ours.round or 0
