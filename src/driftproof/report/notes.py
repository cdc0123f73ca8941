"""How numbers differ in kind from the paper's."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from driftproof.bench import FilledTable, Results, Spec
from driftproof.bench.tables import TableEntry

__all__ = ["compute_notes", "metadata_notes", "relevant_metadata", "table_notes"]


def metadata_notes(shared: Mapping[str, Any]) -> Iterator[str]:
    """What has to be said beside the numbers of a results folder, a sentence each.

    Args:
        shared: What all its cells share.

    Examples:
        >>> list(metadata_notes({"limit": 40, "replaced": {"a-c": "b-c"}}))
        ['Only the first 40 images of each domain.', 'b-c stands in for a-c.']
    """
    if shared.get("limit") is not None:
        yield f"Only the first {shared['limit']} images of each domain."
    for old, new in shared.get("replaced", {}).items():
        yield f"{new} stands in for {old}."
    for name in shared.get("prepared on test images", ()):
        yield f"Where a method prepares on source images of {name}, these were its clean test images."
    if shared.get("frost") == "made up":
        yield "Frost was made up, not photographed."


def table_notes(measured: FilledTable, results: Results) -> list[str]:
    """Those that concern a table, and how it was computed and timed.

    Args:
        measured: The table with its numbers.
        results: Where they are from.
    """
    specs = dict.fromkeys(spec for entry in _filled_entries(measured) for spec in entry.specs)
    return [*metadata_notes(relevant_metadata(specs, results.metadata)), *compute_notes(measured, results)]


def compute_notes(measured: FilledTable, results: Results) -> list[str]:
    """How a table was computed and timed, where that makes its numbers differ in kind from the paper's.

    Args:
        measured: The table with its numbers.
        results: Where they are from.
    """
    entries = _filled_entries(measured)
    told = (_prepared_values_note, _precision_note, _memory_notes, _timing_notes)
    return [sentence for tell in told for sentence in tell(entries, results, measured)]


def _filled_entries(measured: FilledTable) -> list[TableEntry]:
    return [entry for entry in measured.table.entries if measured.values[entry.row, entry.column].ours is not None]


def relevant_metadata(specs: Iterable[Spec], shared: Mapping[str, Any]) -> dict[str, Any]:
    """What all cells of a results folder share, without what plays no role in some of them.

    Args:
        specs: Cells as the tables have them.
        shared: What all share.
    """
    replaced = shared.get("replaced", {})
    named = {name for spec in specs for name in (spec.images, spec.unknown, spec.model)}
    run = {replaced.get(name, name) for name in named}
    domains = {domain for spec in specs for domain in spec.domains}
    return {
        **shared,
        "replaced": {old: new for old, new in replaced.items() if old in named},
        "prepared on test images": [name for name in shared.get("prepared on test images", ()) if name in run],
        "frost": shared.get("frost") if "frost" in domains else None,
    }


def _prepared_values_note(entries: Iterable[TableEntry], results: Results, measured: FilledTable) -> Iterator[str]:
    """What methods took from source data, where the paper does not say what it took."""
    told = [
        f"{name} {value:.3f} for {entry.row} on {entry.column}"
        for entry in entries
        for run in measured.values[entry.row, entry.column].runs[:1]
        for name, value in results.runs[run].conditions[0].get("found", {}).items()
    ]
    if told:
        yield f"Found in source images: {'; '.join(told)}."


def _memory_notes(entries: Iterable[TableEntry], results: Results, measured: FilledTable) -> Iterator[str]:
    """That memory is counted and not measured, and what was measured."""
    counted = [entry for entry in entries if entry.metric == "memory"]
    peaks = {
        entry.row: row["peak"]
        for entry in counted
        for run in measured.values[entry.row, entry.column].runs
        for row in results.rows(run)
        if row["domain"] == entry.domain and row.get("peak") is not None
    }
    if counted:
        yield "Memory is counted from the shapes of a network, in MiB, as TinyTL counts it."
    if peaks:
        told = ", ".join(f"{row} {peak / 2**20:.0f}" for row, peak in peaks.items())
        yield f"The most that the device had allocated during a step, in MiB: {told}."


def _timing_notes(entries: Iterable[TableEntry], results: Results, measured: FilledTable) -> Iterator[str]:
    """What times were taken on, and what can be compared: how many of TENT's steps a step takes."""
    timed = [entry for entry in entries if entry.metric == "milliseconds"]
    runs = dict.fromkeys(run for entry in timed for run in measured.values[entry.row, entry.column].runs)
    if told := dict.fromkeys(_describe_timing(run, results) for run in runs):
        yield f"Steps timed for each method: {', '.join(told)}; the paper's card is another, so only ratios compare."
    times = {entry.row: measured.values[entry.row, entry.column] for entry in timed}
    ours, paper = (getattr(times.get("tent"), name, None) for name in ("ours", "paper"))
    if ours and paper:
        ratios = (
            f"{row} {(value.ours or 0) / ours:.2f} ({(value.paper or 0) / paper:.2f})" for row, value in times.items()
        )
        yield f"Steps of TENT in the time of one, in brackets the paper's: {', '.join(ratios)}."


def _describe_timing(run: Spec, results: Results) -> str:
    how = results.runs[run].conditions[0]
    told = ", ".join(str(how[key]) for key in ("hardware", "engine", "precision") if how.get(key) is not None)
    return f"{dict(run.options)['trials']} ({told})"


def _precision_note(entries: Iterable[TableEntry], results: Results, measured: FilledTable) -> Iterator[str]:
    """Which numbers come of networks that computed with fewer digits, and since which round."""
    rows: dict[str, dict[str, int | None]] = {}
    for entry in entries:
        rows.setdefault(entry.row, {})[entry.column] = _first_bf16_round(entry, results, measured)
    if {first for since in rows.values() for first in since.values()} == {1}:
        yield "Computed in bfloat16."
    elif told := [words for row, since in rows.items() for words in _describe_bf16_columns(row, since)]:
        yield f"Computed in bfloat16: {'; '.join(told)}."


def _describe_bf16_columns(row: str, since: Mapping[str, int | None]) -> Iterator[str]:
    """In which columns of a row, unless in all, and from which round on, unless from the first."""
    for first in dict.fromkeys(since.values()):
        if first is not None:
            columns = [column for column in since if since[column] == first]
            where = "" if len(columns) == len(since) else f" on {', '.join(columns)}"
            yield f"{row}{where}" + ("" if first == 1 else f" from round {first} on")


def _first_bf16_round(entry: TableEntry, results: Results, measured: FilledTable) -> int | None:
    """The first round in bfloat16 of what a number rests on; None if there is none up to its own."""
    value = measured.values[entry.row, entry.column]
    rounds = (
        row["round"]
        for run in value.runs
        for row, conditions in zip(results.rows(run), results.runs[run].conditions, strict=False)
        if conditions.get("precision") == "bf16" and row["round"] <= (value.round or 0)
    )
    return min(rounds, default=None)
