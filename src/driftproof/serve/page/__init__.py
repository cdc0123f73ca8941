"""The page: one file, with nothing to load but data."""

import base64
import functools
import hashlib
from dataclasses import dataclass
from importlib import resources

__all__ = ["Page", "load_page"]


@dataclass(frozen=True)
class Page:
    """The page and what it may do.

    Attributes:
        html: The page.
        policy: Its content security policy: only its own script and style run, and only this server is asked.
    """

    html: str
    policy: str


@functools.cache
def load_page() -> Page:
    """Put the page together from its files."""
    folder = resources.files(__name__)
    files = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in ("uplot.js", "page.js")}
    script = "\n".join(files.values())
    style = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in ("uplot.css", "page.css"))
    html = folder.joinpath("page.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.replace("/*style*/", style).replace("/*script*/", script), policy)


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
