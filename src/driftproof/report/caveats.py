"""How numbers differ in kind from the paper's."""

from collections.abc import Iterator, Mapping
from typing import Any

from driftproof.bench import Measured, Results
from driftproof.bench.tables import Entry

__all__ = ["caveats", "caveats_of"]


def caveats(shared: Mapping[str, Any]) -> Iterator[str]:
    """What has to be said beside the numbers of a results folder, a sentence each.

    Args:
        shared: What all its cells share.

    Example:
        >>> list(caveats({"limit": 40, "replaced": {"a-c": "b-c"}}))
        ['Only the first 40 images of each domain.', 'b-c was streamed for a-c.']
    """
    if shared.get("limit") is not None:
        yield f"Only the first {shared['limit']} images of each domain."
    for old, new in shared.get("replaced", {}).items():
        yield f"{new} was streamed for {old}."
    for name in shared.get("prepared on test images", ()):
        yield f"Where a method prepares on source images of {name}, these were its clean test images."
    if shared.get("frost") == "made up":
        yield "Frost was made up, not photographed."


def caveats_of(measured: Measured, results: Results) -> list[str]:
    """Those that concern a table.

    Args:
        measured: The table with its numbers.
        results: The results folder they are from.
    """
    entries = [entry for entry in measured.table.entries if measured.values[entry.row, entry.column].ours is not None]
    specs, shared = [spec for entry in entries for spec in entry.specs], results.shared
    sets = {name for spec in specs for name in (spec.images, spec.unknown)}
    replaced = {old: new for old, new in shared.get("replaced", {}).items() if old in sets}
    prepared = [name for name in shared.get("prepared on test images", ()) if name in sets]
    frosted = any("frost" in spec.domains for spec in specs)
    concerned = {**shared, "replaced": replaced, "prepared on test images": prepared}
    general = caveats(concerned if frosted else {**concerned, "frost": None})
    rounded = [said for entry in entries for said in _rounded(entry, results, measured)]
    return [*general, *([f"Computed in bfloat16: {'; '.join(rounded)}."] if rounded else [])]


def _rounded(entry: Entry, results: Results, measured: Measured) -> Iterator[str]:
    """Whether a number comes of networks that computed with fewer digits, and since which round."""
    last = measured.values[entry.row, entry.column].round or 0
    first = min(
        (
            row["round"]
            for spec in entry.specs
            for run in results.seeds(spec)
            for row, conditions in zip(results.rows(run), results.cells[run].conditions, strict=False)
            if conditions.get("precision") == "bf16"
        ),
        default=last + 1,
    )
    if first <= last:
        yield f"{entry.row} on {entry.column}" + (f" from round {first} on" if first > 1 else "")
