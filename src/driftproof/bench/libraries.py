"""Polars and Altair as `pl` and `alt`: imported on first use, with an error that says how to install them."""

from types import ModuleType
from typing import TYPE_CHECKING

from driftproof.optional import require

if TYPE_CHECKING:
    import altair as alt
    import polars as pl
else:

    def __getattr__(name: str) -> ModuleType:
        """Import a library when a module asks for it."""
        modules = {"alt": "altair", "pl": "polars"}
        if name not in modules:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return require(modules[name], "Reading and reporting results", "'driftproof[report]'")


__all__ = ["alt", "pl"]
