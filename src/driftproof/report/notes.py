"""Notes below the tables: where our numbers are not comparable with the paper's."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from driftproof.bench import FilledTable, Results, Spec
from driftproof.bench.tables import TableEntry

__all__ = ["compute_notes", "metadata_notes", "relevant_metadata", "table_notes"]


def metadata_notes(metadata: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for each way in which a results folder deviates from the paper's setup.

    Args:
        metadata: What all its runs share.

    Examples:
        >>> list(metadata_notes({"limit": 40, "replaced": {"a-c": "b-c"}}))
        ['Only the first 40 images of each domain.', 'b-c replaces a-c.']
    """
    if metadata.get("limit") is not None:
        yield f"Only the first {metadata['limit']} images of each domain."
    for old, new in metadata.get("replaced", {}).items():
        yield f"{new} replaces {old}."
    for name in metadata.get("prepared on test images", ()):
        yield f"Methods that prepare on source images of {name} used its clean test images."
    if metadata.get("frost") == "made up":
        yield "Frost textures are procedural, not photographs."


def table_notes(filled: FilledTable, results: Results) -> list[str]:
    """All notes on a table: on its data, precision, memory and timing.

    Args:
        filled: The table with its numbers.
        results: Where they are from.
    """
    specs = dict.fromkeys(spec for entry in _filled_entries(filled) for spec in entry.specs)
    return [*metadata_notes(relevant_metadata(specs, results.metadata)), *compute_notes(filled, results)]


def compute_notes(filled: FilledTable, results: Results) -> list[str]:
    """Notes on how a table was computed: prepared values, precision, memory and timing.

    Args:
        filled: The table with its numbers.
        results: Where they are from.
    """
    entries = _filled_entries(filled)
    sources = (_prepared_values_note, _precision_note, _memory_notes, _timing_notes)
    return [note for source in sources for note in source(entries, results, filled)]


def _filled_entries(filled: FilledTable) -> list[TableEntry]:
    return [entry for entry in filled.table.entries if filled.values[entry.row, entry.column].ours is not None]


def relevant_metadata(specs: Iterable[Spec], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a results folder that concerns some of its runs.

    Args:
        specs: Runs, as the tables name them.
        metadata: What all runs share.
    """
    replaced = metadata.get("replaced", {})
    named = {name for spec in specs for name in (spec.images, spec.unknown, spec.model)}
    run = {replaced.get(name, name) for name in named}
    domains = {domain for spec in specs for domain in spec.domains}
    return {
        **metadata,
        "replaced": {old: new for old, new in replaced.items() if old in named},
        "prepared on test images": [name for name in metadata.get("prepared on test images", ()) if name in run],
        "frost": metadata.get("frost") if "frost" in domains else None,
    }


def _prepared_values_note(entries: Iterable[TableEntry], results: Results, filled: FilledTable) -> Iterator[str]:
    """Values that methods estimated from source data, which the paper does not report."""
    values = [
        f"{name} {value:.3f} for {entry.row} on {entry.column}"
        for entry in entries
        for run in filled.values[entry.row, entry.column].runs[:1]
        for name, value in results.runs[run].conditions[0].get("found", {}).items()
    ]
    if values:
        yield f"Estimated from source images: {'; '.join(values)}."


def _memory_notes(entries: Iterable[TableEntry], results: Results, filled: FilledTable) -> Iterator[str]:
    """How memory is computed, and the measured peaks."""
    counted = [entry for entry in entries if entry.metric == "memory"]
    peaks = {
        entry.row: row["peak"]
        for entry in counted
        for run in filled.values[entry.row, entry.column].runs
        for row in results.rows(run)
        if row["domain"] == entry.domain and row.get("peak") is not None
    }
    if counted:
        yield "Memory is computed from the layer shapes of the network, in MiB, as in TinyTL."
    if peaks:
        listed = ", ".join(f"{row} {peak / 2**20:.0f}" for row, peak in peaks.items())
        yield f"Peak memory allocated on the device during a step, in MiB: {listed}."


def _timing_notes(entries: Iterable[TableEntry], results: Results, filled: FilledTable) -> Iterator[str]:
    """What steps were timed on, and step times relative to TENT, which are comparable across devices."""
    timed = [entry for entry in entries if entry.metric == "milliseconds"]
    runs = dict.fromkeys(run for entry in timed for run in filled.values[entry.row, entry.column].runs)
    if timings := dict.fromkeys(_describe_timing(run, results) for run in runs):
        listed = ", ".join(timings)
        yield f"Timed steps per method: {listed}; the paper used another GPU, so only ratios are comparable."
    times = {entry.row: filled.values[entry.row, entry.column] for entry in timed}
    ours, paper = (getattr(times.get("tent"), name, None) for name in ("ours", "reference"))
    if ours and paper:
        ratios = (
            f"{row} {(value.ours or 0) / ours:.2f} ({(value.reference or 0) / paper:.2f})" for row, value in times.items()
        )
        yield f"Step time relative to TENT, in brackets the paper's: {', '.join(ratios)}."


def _describe_timing(run: Spec, results: Results) -> str:
    conditions = results.runs[run].conditions[0]
    keys = ("hardware", "engine", "precision")
    listed = ", ".join(str(conditions[key]) for key in keys if conditions.get(key) is not None)
    return f"{dict(run.options)['trials']} ({listed})"


def _precision_note(entries: Iterable[TableEntry], results: Results, filled: FilledTable) -> Iterator[str]:
    """Which numbers were computed in bfloat16, and from which round on."""
    rows: dict[str, dict[str, int | None]] = {}
    for entry in entries:
        rows.setdefault(entry.row, {})[entry.column] = _first_bf16_round(entry, results, filled)
    if {first for columns in rows.values() for first in columns.values()} == {1}:
        yield "Computed in bfloat16."
    elif listed := [text for row, columns in rows.items() for text in _describe_bf16_columns(row, columns)]:
        yield f"Computed in bfloat16: {'; '.join(listed)}."


def _describe_bf16_columns(row: str, first_rounds: Mapping[str, int | None]) -> Iterator[str]:
    """The columns of a row in bfloat16, unless all are, and the first such round, unless it is round 1."""
    for first in dict.fromkeys(first_rounds.values()):
        if first is not None:
            columns = [column for column in first_rounds if first_rounds[column] == first]
            where = "" if len(columns) == len(first_rounds) else f" on {', '.join(columns)}"
            yield f"{row}{where}" + ("" if first == 1 else f" from round {first} on")


def _first_bf16_round(entry: TableEntry, results: Results, filled: FilledTable) -> int | None:
    """The first round in bfloat16 up to the round of a number; None if there is none."""
    value = filled.values[entry.row, entry.column]
    rounds = (
        row["round"]
        for run in value.runs
        for row, conditions in zip(results.rows(run), results.runs[run].conditions, strict=False)
        if conditions.get("precision") == "bf16" and row["round"] <= (value.round or 0)
    )
    return min(rounds, default=None)
