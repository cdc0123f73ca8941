"""Notes below the tables: where our numbers are not comparable with the paper's."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from driftproof.bench.results import FilledTable, Results, Value
from driftproof.bench.spec import Spec
from driftproof.bench.tables import TableEntry
from driftproof.report.text import metadata_notes

__all__ = ["relevant_notes", "table_notes"]

_Measured = list[tuple[TableEntry, Value]]


def table_notes(filled: FilledTable, results: Results) -> list[str]:
    """Return all notes on a table, filled from results: on its data, precision, memory and timing."""
    values = ((entry, filled.values[entry.row, entry.column]) for entry in filled.table.entries)
    found = [(entry, value) for entry, value in values if value.ours is not None]
    sources = (_prepared_notes, _precision_notes, _memory_notes, _timing_notes)
    notes = [note for source in sources for note in source(found, results)]
    return [*relevant_notes([entry for entry, _ in found], results.metadata), *notes]


def relevant_notes(
    entries: Iterable[TableEntry], metadata: Mapping[str, Any], keys: Iterable[str] | None = None
) -> list[str]:
    """Return the notes on a folder's metadata, or on some of its keys, that concern some entries."""
    specs, replaced = [spec for entry in entries for spec in entry.specs], metadata.get("replaced", {})
    named = {name for spec in specs for name in (spec.images, spec.unknown, spec.model)}
    run = {replaced.get(name, name) for name in named}
    relevant = {
        "limit": metadata.get("limit"),
        "replaced": {old: new for old, new in replaced.items() if old in named},
        "prepared on test images": [name for name in metadata.get("prepared on test images", ()) if name in run],
        "frost": metadata.get("frost") if any("frost" in spec.domains for spec in specs) else None,
    }
    return list(metadata_notes({key: value for key, value in relevant.items() if keys is None or key in keys}))


def _prepared_notes(found: _Measured, results: Results) -> Iterator[str]:
    """Values that methods estimated from source data, which the paper does not report."""
    texts = [
        f"{name} {number:.3f} for {entry.row} on {entry.column}"
        for entry, value in found
        for run in value.runs[:1]
        for name, number in results.runs[run].stretches[0].get("found", {}).items()
    ]
    if texts:
        yield f"Estimated from source images: {'; '.join(texts)}."


def _memory_notes(found: _Measured, results: Results) -> Iterator[str]:
    """How memory is computed, and the measured peaks."""
    counted = [(entry, value) for entry, value in found if entry.metric == "memory"]
    if counted:
        yield "Memory is computed from the layer shapes of the network, in MiB, as in TinyTL."
    measures = results.frames.measures.filter(measure="peak").select("run", "domain", "value").drop_nulls()
    peaks = {(run, domain): peak for run, domain, peak in measures.collect().iter_rows()} if counted else {}
    places = ((entry.row, (run.name, entry.domain)) for entry, value in counted for run in value.runs)
    if by_row := {row: peaks[place] / 2**20 for row, place in places if place in peaks}:
        listed = ", ".join(f"{row} {peak:.0f}" for row, peak in by_row.items())
        yield f"Peak memory allocated on the device during a step, in MiB: {listed}."


def _timing_notes(found: _Measured, results: Results) -> Iterator[str]:
    """What steps were timed on, and step times relative to TENT, which are comparable across devices."""
    times = {entry.row: value for entry, value in found if entry.metric == "milliseconds"}
    runs = dict.fromkeys(run for value in times.values() for run in value.runs)
    if timings := dict.fromkeys(_describe_timing(run, results) for run in runs):
        listed = ", ".join(timings)
        yield f"Timed steps per method: {listed}; the paper used another GPU, so only ratios are comparable."
    tent = times.get("tent", Value())
    if tent.ours and tent.reference:
        ours, paper = tent.ours, tent.reference
        texts = (f"{row} {(v.ours or 0) / ours:.2f} ({(v.reference or 0) / paper:.2f})" for row, v in times.items())
        yield f"Step time relative to TENT, in brackets the paper's: {', '.join(texts)}."


def _describe_timing(run: Spec, results: Results) -> str:
    machine = results.runs[run].stretches[0]
    listed = ", ".join(str(machine[key]) for key in ("hardware", "engine", "precision") if machine.get(key) is not None)
    return f"{dict(run.options)['trials']} ({listed})"


def _precision_notes(found: _Measured, results: Results) -> Iterator[str]:
    """Which numbers were computed in bfloat16, and from which round on."""
    firsts: dict[str, dict[str, float | None]] = {}
    for entry, value in found:
        rounds = [first for run in value.runs if (first := _first_bf16_round(run, results)) <= (value.round or 0)]
        firsts.setdefault(entry.row, {})[entry.column] = min(rounds, default=None)
    texts = []
    for row, columns in firsts.items():
        for first in dict.fromkeys(round for round in columns.values() if round is not None):
            alike = [column for column in columns if columns[column] == first]
            where = "" if len(alike) == len(columns) else f" on {', '.join(alike)}"
            texts.append(f"{row}{where}" + ("" if first == 1 else f" from round {first:g} on"))
    if {first for columns in firsts.values() for first in columns.values()} == {1}:
        yield "Computed in bfloat16."
    elif texts:
        yield f"Computed in bfloat16: {'; '.join(texts)}."


def _first_bf16_round(run: Spec, results: Results) -> float:
    """Return the first round of a run in bfloat16; infinity if there is none."""
    visits = 0
    for stretch in results.runs[run].stretches:
        if stretch.get("precision") == "bf16":
            return visits // len(run.domains) + 1 if run.task == "stream" else 1
        visits += stretch["rows"]
    return float("inf")
