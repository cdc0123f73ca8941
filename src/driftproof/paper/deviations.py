"""Numbers that deviate strongly from the paper's, and what ablations say about the causes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from driftproof.bench import FilledTable, Results, Spec, Value
from driftproof.bench.tables import Table, TableEntry
from driftproof.paper.filled import fill_tables
from driftproof.paper.markdown import format_markdown_table
from driftproof.paper.suites.settings import FILTER_OPTIONS, options_for
from driftproof.report.notes import metadata_notes, relevant_metadata
from driftproof.report.numbers import format_number, format_signed

__all__ = ["LARGE_DEVIATION", "large_deviations"]

LARGE_DEVIATION = 3.0
"""Percentage points from the paper above which a number needs an explanation."""

_COLUMNS = ["table", "method", "setting", "ours", "paper", "difference", "BN Adapt's", "effect of ablations"]
_LEGEND = (
    "BN Adapt learns nothing, so its difference is due to the network and the images. Last column: effect of the named "
    "ablation on the error (points), on held-out or lower-severity corruptions, at the last round both runs completed "
    "and after at most about as many domains. For scores: the error of the same run. Numbers from an earlier round "
    "than the paper's are not listed."
)

_ArchivedTable = tuple[FilledTable, Results]
"""A table and the archive with its numbers."""


def large_deviations(archives: Sequence[Results]) -> str:
    """List every number that deviates strongly from the paper's, as a Markdown table.

    Runs on only some of the images are left out.

    Args:
        archives: The archives.
    """
    complete = [results for results in archives if not results.is_subset]
    tables = [(filled, results) for results in complete for filled in fill_tables(results)]
    found: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for filled, results in tables:
        for texts, setting in _table_deviations(filled, results, tables):
            found.setdefault(texts, []).append((f"`{filled.table.name}`", setting))
    rows = []
    for (method, *numbers), places in found.items():
        names, settings = (", ".join(dict.fromkeys(texts)) for texts in zip(*places, strict=True))
        rows.append([names, method, settings, *numbers])
    return f"{format_markdown_table(_COLUMNS, rows)}\n\n{_LEGEND}" if rows else "None."


def _table_deviations(
    filled: FilledTable, results: Results, tables: Sequence[_ArchivedTable]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """The text of each large deviation, and its setting; equal for a number that several tables show."""
    for entry in filled.table.entries:
        value = filled.values[entry.row, entry.column]
        if filled.table.unit != "mixed" and _is_large(value):
            difference = value.difference or 0.0
            baseline = filled.values.get(("bn_adapt", entry.column), Value()).difference
            numbers = (
                format_number(value.ours or 0.0, 2),
                format_number(value.reference or 0.0, 2),
                format_signed(difference, 2),
                "" if baseline is None else format_signed(baseline, 2),
            )
            explanation = _explain(entry, results, tables, difference - (baseline or 0.0))
            yield (entry.row, *numbers, explanation), entry.column


def _is_large(value: Value) -> bool:
    return value.complete and value.difference is not None and abs(value.difference) > LARGE_DEVIATION


def _explain(entry: TableEntry, results: Results, tables: Sequence[_ArchivedTable], unexplained: float) -> str:
    """Known reasons for a deviation; `unexplained` is the part not due to network and images."""
    notes = metadata_notes({"replaced": relevant_metadata(entry.specs, results.metadata)["replaced"]})
    return "<br>".join([*notes, *_list_reasons(entry, results, tables, unexplained)])


def _list_reasons(
    entry: TableEntry, results: Results, tables: Sequence[_ArchivedTable], unexplained: float
) -> list[str]:
    if all(results.is_stateless(run) for spec in entry.specs for run in results.seeds(spec)):
        return ["learns nothing"]
    method = entry.specs[0].method
    effects = _ablation_effects(tables, entry, method) or _error_of_same_run(results, entry)
    if effects or abs(unexplained) <= LARGE_DEVIATION:
        return effects or ["BN Adapt deviates as much"]
    return _ablation_effects(tables, entry, method.partition("+")[0]) or ["no ablation was run"]


def _error_of_same_run(results: Results, entry: TableEntry) -> list[str]:
    """The error of the same run and round, for a number that is not an error."""
    texts = []
    for filled in fill_tables(results) if entry.metric != "error" else ():
        for other in filled.table.entries:
            value = filled.values[other.row, other.column]
            run = (entry.specs, "error", entry.round, entry.domain)
            if (other.specs, other.metric, other.round, other.domain) == run and value.difference is not None:
                errors = (
                    f"{format_number(value.ours or 0.0, 2)}, the paper's {format_number(value.reference or 0.0, 2)}"
                )
                texts.append(f"`{filled.table.name}`: the error of {other.row} is {errors}")
    return texts


def _ablation_effects(tables: Sequence[_ArchivedTable], entry: TableEntry, method: str) -> list[str]:
    """The effects of a method's ablations, by table and round; an effect in two tables is listed once."""
    texts: dict[str, list[str]] = {}
    seen: set[tuple[tuple[Spec, ...], int]] = set()
    for filled, results in tables:
        for ablation, reference in _matching_ablations(filled.table, entry, method):
            effect, round = _effect(results, ablation, reference)
            if effect is not None and (ablation.specs, round) not in seen:
                seen.add((ablation.specs, round))
                where = f"`{filled.table.name}`, round {round}"
                texts.setdefault(where, []).append(f"{ablation.row} {format_signed(effect)}")
    return [f"{where}: {'; '.join(effects)}" for where, effects in texts.items()]


def _matching_ablations(table: Table, entry: TableEntry, method: str) -> Iterator[tuple[TableEntry, TableEntry]]:
    """The ablations of a method in a table, each with the entry that has the same options as `entry`."""
    if not table.name.startswith("choice_"):
        return
    entries = [
        replace(other, round=min(other.round, _equivalent_rounds(entry, other)))
        for other in table.entries
        if other.specs[0].method == method and _is_relevant(other, entry)
    ]
    references = {other.column: other for other in entries if not _changed_options(other, entry)}
    for other in entries:
        if _changed_options(other, entry) and other.column in references:
            yield other, references[other.column]


def _equivalent_rounds(entry: TableEntry, ablation: TableEntry) -> int:
    """The rounds of an ablation that have about as many domains as the rounds of an entry."""
    return math.ceil(entry.round * len(entry.specs[0].domains) / len(ablation.specs[0].domains))


def _changed_options(ablation: TableEntry, entry: TableEntry) -> set[str]:
    """Options in which an ablation differs from an entry, or from the defaults if its method differs."""
    ablated, spec = ablation.specs[0], entry.specs[0]
    usual = dict(spec.options) if ablated.method == spec.method else options_for(ablated.method, ablated.images)
    chosen = dict(ablated.options)
    changed = {key for key in (chosen | usual).keys() - {"novelty"} if chosen.get(key) != usual.get(key)}
    return changed if ablated.batch_size == spec.batch_size else {*changed, "batch_size"}


def _is_relevant(ablation: TableEntry, entry: TableEntry) -> bool:
    """Whether images and metric match, and the changed options are used: a selection replaces a method's filter."""
    ablated, spec = ablation.specs[0], entry.specs[0]
    replaced = "+" in spec.method and _changed_options(ablation, entry) & set(FILTER_OPTIONS)
    matches = (ablated.images, ablated.setting, ablation.metric) == (spec.images, spec.setting, entry.metric)
    return matches and not replaced


def _effect(results: Results, ablation: TableEntry, reference: TableEntry) -> tuple[float | None, int]:
    """The difference between two entries, and its round."""
    ours, usual = results.compare([ablation, reference])
    if ours.ours is None or usual.ours is None:
        return None, 0
    return ours.ours - usual.ours, ours.round or 0
