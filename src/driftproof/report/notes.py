"""Notes on what all runs of a folder share."""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["metadata_notes"]


def metadata_notes(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield one sentence for each way in which a folder's runs are not what their names say.

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
