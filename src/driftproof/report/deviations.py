"""What is far from the paper, how much of that is in network and images, and what experiments say of the rest."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from driftproof.bench import FilledTable, Results, Spec, Value
from driftproof.bench.suites.settings import FILTER_OPTIONS, options_for
from driftproof.bench.tables import Table, TableEntry
from driftproof.report.markdown import format_markdown_table
from driftproof.report.notes import metadata_notes, relevant_metadata
from driftproof.report.numbers import format_number, format_signed

__all__ = ["LARGE_DEVIATION", "large_deviations"]

LARGE_DEVIATION = 3.0
"""Percentage points from the paper that call for an explanation."""

_COLUMNS = ["table", "method", "setting", "ours", "paper", "difference", "BN Adapt's", "what experiments change"]
_LEGEND = (
    "BN Adapt learns nothing: its difference is that of the network and the images. The last column tells by how many "
    "points the error changes where choices are made differently, on the held-out or milder corruptions of the table "
    "named, in the last round that both have reached in about as many domains as the number took or fewer; of a score, "
    "what the error of the same run is. Numbers from an earlier round than the paper's are not listed."
)

_Filled = tuple[FilledTable, Results]
"""A table, and the archive that fills it."""


def large_deviations(everything: Sequence[Results]) -> str:
    """Every number that is far from the paper's, as a table in Markdown; runs on only some images stay out.

    Args:
        everything: The archives.
    """
    whole = [results for results in everything if not results.is_subset]
    tables = [(measured, results) for results in whole for measured in results.tables()]
    found: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for measured, results in tables:
        for told, setting in _table_deviations(measured, results, tables):
            found.setdefault(told, []).append((f"`{measured.table.name}`", setting))
    rows = []
    for (method, *numbers), places in found.items():
        names, settings = (", ".join(dict.fromkeys(words)) for words in zip(*places, strict=True))
        rows.append([names, method, settings, *numbers])
    return f"{format_markdown_table(_COLUMNS, rows)}\n\n{_LEGEND}" if rows else "None."


def _table_deviations(measured: FilledTable, results: Results, tables: Sequence[_Filled]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is told of each such number, and its setting; of one that several tables show, the same is told."""
    for entry in measured.table.entries:
        value = measured.values[entry.row, entry.column]
        if measured.table.unit != "mixed" and _is_large(value):
            bystander = measured.values.get(("bn_adapt", entry.column), Value()).difference
            numbers = format_number(value.ours or 0.0, 2), format_number(value.paper or 0.0, 2), format_signed(value.difference or 0.0, 2)
            beside = "" if bystander is None else format_signed(bystander, 2)
            rest = (value.difference or 0.0) - (bystander or 0.0)
            yield (entry.row, *numbers, beside, _explain(entry, results, tables, rest)), entry.column


def _is_large(value: Value) -> bool:
    return value.complete and value.difference is not None and abs(value.difference) > LARGE_DEVIATION


def _explain(entry: TableEntry, results: Results, tables: Sequence[_Filled], rest: float) -> str:
    """What is known of the reasons for a number, of which so much is not in network and images."""
    apart = metadata_notes({"replaced": relevant_metadata(entry.specs, results.metadata)["replaced"]})
    return "<br>".join([*apart, *_list_reasons(entry, results, tables, rest)])


def _list_reasons(entry: TableEntry, results: Results, tables: Sequence[_Filled], rest: float) -> list[str]:
    if all(results.is_stateless(run) for spec in entry.specs for run in results.seeds(spec)):
        return ["learns nothing"]
    method = entry.specs[0].method
    tried = _ablation_effects(tables, entry, method) or _error_of_same_run(results, entry)
    if tried or abs(rest) <= LARGE_DEVIATION:
        return tried or ["BN Adapt is as far off"]
    return _ablation_effects(tables, entry, method.partition("+")[0]) or ["not tried yet"]


def _error_of_same_run(results: Results, entry: TableEntry) -> list[str]:
    """What else is measured of a run goes with its error in the same round: how far off that is."""
    told = []
    for measured in results.tables() if entry.metric != "error" else ():
        for other in measured.table.entries:
            value = measured.values[other.row, other.column]
            run = (entry.specs, "error", entry.round, entry.domain)
            if (other.specs, other.metric, other.round, other.domain) == run and value.difference is not None:
                off = f"{format_number(value.ours or 0.0, 2)}, the paper's {format_number(value.paper or 0.0, 2)}"
                told.append(f"`{measured.table.name}`: the error of {other.row} is {off}")
    return told


def _ablation_effects(tables: Sequence[_Filled], entry: TableEntry, method: str) -> list[str]:
    """What the experiments of a method change, by table and round; a change that two tables show is told once."""
    told: dict[str, list[str]] = {}
    seen: set[tuple[tuple[Spec, ...], int]] = set()
    for measured, results in tables:
        for other, usual in _matching_ablations(measured.table, entry, method):
            change, round = _effect(results, other, usual)
            if change is not None and (other.specs, round) not in seen:
                seen.add((other.specs, round))
                told.setdefault(f"`{measured.table.name}`, round {round}", []).append(f"{other.row} {format_signed(change)}")
    return [f"{where}: {'; '.join(changes)}" for where, changes in told.items()]


def _matching_ablations(table: Table, entry: TableEntry, method: str) -> Iterator[tuple[TableEntry, TableEntry]]:
    """What a table tries of a method where a number was taken, each beside the same with that number's choices."""
    if not table.name.startswith("choice_"):
        return
    entries = [
        replace(other, round=min(other.round, _equivalent_rounds(entry, other)))
        for other in table.entries
        if other.specs[0].method == method and _is_relevant(other, entry)
    ]
    usual = {other.column: other for other in entries if not _changed_options(other, entry)}
    yield from ((other, usual[other.column]) for other in entries if _changed_options(other, entry) and other.column in usual)


def _equivalent_rounds(entry: TableEntry, experiment: TableEntry) -> int:
    """How many rounds of an experiment are about as many domains as a number comes after."""
    return math.ceil(entry.round * len(entry.specs[0].domains) / len(experiment.specs[0].domains))


def _changed_options(experiment: TableEntry, entry: TableEntry) -> set[str]:
    """What an experiment chooses otherwise than a number; or than is usual, where it is of a part of the method."""
    tried, spec = experiment.specs[0], entry.specs[0]
    usual = dict(spec.options) if tried.method == spec.method else options_for(tried.method, tried.images)
    chosen = dict(tried.options)
    changed = {key for key in (chosen | usual).keys() - {"novelty"} if chosen.get(key) != usual.get(key)}
    return changed if tried.batch_size == spec.batch_size else {*changed, "batch_size"}


def _is_relevant(experiment: TableEntry, entry: TableEntry) -> bool:
    """Whether it is on the same images, and a choice there is: a selection takes the place of a method's filter."""
    tried, spec = experiment.specs[0], entry.specs[0]
    filtering = "+" in spec.method and _changed_options(experiment, entry) & set(FILTER_OPTIONS)
    alike = (tried.images, tried.setting, experiment.metric) == (spec.images, spec.setting, entry.metric)
    return alike and not filtering


def _effect(results: Results, entry: TableEntry, beside: TableEntry) -> tuple[float | None, int]:
    """By how much two entries differ, and in which round."""
    ours, usual = results.compare([entry, beside])
    if ours.ours is None or usual.ours is None:
        return None, 0
    return ours.ours - usual.ours, ours.round or 0
