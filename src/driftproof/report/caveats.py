"""How numbers differ in kind from the paper's."""

from collections.abc import Iterator, Mapping
from typing import Any

from driftproof.bench import Measured

__all__ = ["caveats", "caveats_of"]


def caveats(shared: Mapping[str, Any]) -> Iterator[str]:
    """What has to be said beside the numbers of a results folder, a sentence each.

    Args:
        shared: What all its cells share.

    Example:
        >>> list(caveats({"limit": 40, "replaced": {"a-c": "b-c"}}))
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


def caveats_of(measured: Measured, shared: Mapping[str, Any]) -> list[str]:
    """Those that concern a table.

    Args:
        measured: The table with its numbers.
        shared: What all cells of its results folder share.
    """
    specs = [
        spec for entry in measured.table.entries if _is_there(measured, entry.row, entry.column) for spec in entry.specs
    ]
    named = {name for spec in specs for name in (spec.images, spec.unknown, spec.model)}
    replaced = {old: new for old, new in shared.get("replaced", {}).items() if old in named}
    prepared = [name for name in shared.get("prepared on test images", ()) if name in named]
    frosted = any("frost" in spec.domains for spec in specs)
    concerned = {**shared, "replaced": replaced, "prepared on test images": prepared}
    return list(caveats(concerned if frosted else {**concerned, "frost": None}))


def _is_there(measured: Measured, row: str, column: str) -> bool:
    return measured.values[row, column].ours is not None
