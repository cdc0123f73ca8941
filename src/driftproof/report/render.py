"""Fill in the templates of pages."""

from driftproof import __version__
from driftproof.optional import require

__all__ = ["render"]


def render(template: str, **content: object) -> str:
    """Fill in a template of this package; texts are escaped."""
    jinja2 = require("jinja2", "Writing a page", "'driftproof[report]'")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("driftproof.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    text: str = environment.get_template(template).render(version=__version__, **content)
    return text
