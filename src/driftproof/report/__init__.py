"""Report results: one HTML page, figures, and tables for the terminal."""

from driftproof.report.page import ReportTable, metadata_notes, write_report

__all__ = ["ReportTable", "metadata_notes", "write_report"]
