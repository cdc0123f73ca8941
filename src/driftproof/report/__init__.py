"""Report results: one HTML page, figures, and tables for the terminal."""

import importlib
from typing import TYPE_CHECKING, Any

from driftproof.report.text import metadata_notes

if TYPE_CHECKING:
    from driftproof.report.page import ReportTable, write_report

__all__ = ["ReportTable", "metadata_notes", "write_report"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # as Python calls it
    """Import what needs polars, altair and great_tables on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.page"), name)
