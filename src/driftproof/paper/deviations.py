"""Numbers that deviate strongly from the paper's, and what ablations say about the causes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from driftproof.bench.results import FilledTable, Results, Value
from driftproof.bench.spec import Spec
from driftproof.bench.tables import Table, TableEntry
from driftproof.paper.comparison import fill_tables, format_markdown, relevant_notes
from driftproof.paper.suites import FILTER_OPTIONS, options_for
from driftproof.report.text import format_number, format_signed

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

_Tables = Sequence[tuple[FilledTable, Results]]  # each with the archive that has its numbers


def large_deviations(archives: Sequence[Results]) -> str:
    """List every number that deviates strongly from the paper's, except those on only some of the images."""
    tables = [(filled, results) for results in archives if not results.is_subset for filled in fill_tables(results)]
    found: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for filled, results in tables:
        for texts, setting in _table_deviations(filled, results, tables):
            found.setdefault(texts, []).append((f"`{filled.table.name}`", setting))
    rows = []
    for (method, *numbers), places in found.items():
        names, settings = (", ".join(dict.fromkeys(texts)) for texts in zip(*places, strict=True))
        rows.append([names, method, settings, *numbers])
    return f"{format_markdown(_COLUMNS, rows)}\n\n{_LEGEND}" if rows else "None."


def _table_deviations(filled: FilledTable, results: Results, tables: _Tables) -> Iterator[tuple[tuple[str, ...], str]]:
    """The text of each large deviation, and its setting; equal for a number that several tables show."""
    for entry in filled.table.entries if filled.table.unit != "mixed" else ():
        value = filled.values[entry.row, entry.column]
        difference = value.difference if value.complete else None
        if value.ours is None or difference is None or abs(difference) <= LARGE_DEVIATION:
            continue
        baseline = filled.values.get(("bn_adapt", entry.column), Value()).difference
        numbers = (
            format_number(value.ours, 2), format_number(value.ours - difference, 2), format_signed(difference, 2),
            "" if baseline is None else format_signed(baseline, 2),
        )  # fmt: skip
        notes = relevant_notes([entry], results.metadata, ["replaced"])
        reasons = _list_reasons(entry, results, tables, difference - (baseline or 0.0))
        yield (entry.row, *numbers, "<br>".join([*notes, *reasons])), entry.column


def _list_reasons(entry: TableEntry, results: Results, tables: _Tables, unexplained: float) -> list[str]:
    """Known reasons for a deviation; `unexplained` is the part not due to network and images."""
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
            ours, paper = (getattr(filled.values[other.row, other.column], name) for name in ("ours", "reference"))
            run = (entry.specs, "error", entry.round, entry.domain)
            if (other.specs, other.metric, other.round, other.domain) == run and None not in (ours, paper):
                errors = f"{format_number(ours, 2)}, the paper's {format_number(paper, 2)}"
                texts.append(f"`{filled.table.name}`: the error of {other.row} is {errors}")
    return texts


def _ablation_effects(tables: _Tables, entry: TableEntry, method: str) -> list[str]:
    """The effects of a method's ablations, by table and round; an effect in two tables is listed once."""
    texts: dict[str, list[str]] = {}
    seen: set[tuple[tuple[Spec, ...], int | None]] = set()
    for filled, results in tables:
        for ablation, reference in _matching_ablations(filled.table, entry, method):
            ours, usual = results.compare([ablation, reference])
            if ours.ours is not None and usual.ours is not None and (ablation.specs, ours.round) not in seen:
                seen.add((ablation.specs, ours.round))
                effect = f"{ablation.row} {format_signed(ours.ours - usual.ours)}"
                texts.setdefault(f"`{filled.table.name}`, round {ours.round}", []).append(effect)
    return [f"{where}: {'; '.join(effects)}" for where, effects in texts.items()]


def _matching_ablations(table: Table, entry: TableEntry, method: str) -> Iterator[tuple[TableEntry, TableEntry]]:
    """The ablations of a method in a table, each with the entry that has the same options as `entry`."""
    visits = entry.round * len(entry.specs[0].domains)  # an ablation is compared after about as many
    entries = [
        replace(other, round=min(other.round, math.ceil(visits / len(other.specs[0].domains))))
        for other in (table.entries if table.name.startswith("choice_") else ())
        if other.specs[0].method == method and _is_relevant(other, entry)
    ]
    references = {other.column: other for other in entries if not _changed_options(other, entry)}
    for other in entries:
        if _changed_options(other, entry) and other.column in references:
            yield other, references[other.column]


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
