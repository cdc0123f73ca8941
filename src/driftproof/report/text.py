"""Numbers and notes for readers, and pages from templates."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from driftproof import __version__
from driftproof.files import atomic_write
from driftproof.optional import require

__all__ = ["format_duration", "format_number", "format_signed", "metadata_notes", "write_page"]


def format_number(value: float, digits: int = 1) -> str:
    """Format a number with a fixed number of digits after the decimal point.

    Examples:
        >>> format_number(-0.04), format_number(14.06, 2)
        ('0.0', '14.06')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def format_signed(value: float, digits: int = 1) -> str:
    """Format a difference with its sign.

    Examples:
        >>> format_signed(-6.94), format_signed(0.31), format_signed(-0.01)
        ('−6.9', '+0.3', '0.0')
    """
    text = format_number(value, digits)
    return f"+{text}" if round(value, digits) > 0 else text


def format_duration(seconds: float) -> str:
    """Format a time in its two largest units.

    Examples:
        >>> format_duration(0.25), format_duration(75), format_duration(3 * 3600 + 125)
        ('0.2 s', '1 min 15 s', '3 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


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


def write_page(template: str, out: Path, *, package: str = "driftproof.report", **content: object) -> Path:
    """Fill in a template of a package and write it atomically; texts are escaped.

    The package's templates may extend and include those of the report.
    """
    jinja2 = require("jinja2", "Writing a page", "'driftproof[report]'")
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(name) for name in dict.fromkeys((package, "driftproof.report"))])
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    text = environment.get_template(template).render(version=__version__, **content)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return out
