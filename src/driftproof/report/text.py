"""Pages from templates, and notes on what the runs of a folder share."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from driftproof import __version__
from driftproof.files import atomic_write
from driftproof.optional import require

__all__ = ["metadata_notes", "write_page"]


def write_page(template: str, out: Path, **content: object) -> Path:
    """Fill in a template of this package and write it atomically; texts are escaped."""
    jinja2 = require("jinja2", "Writing a page", "'driftproof[report]'")
    loader = jinja2.PackageLoader("driftproof.report")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    text = environment.get_template(template).render(version=__version__, **content)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return out


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
