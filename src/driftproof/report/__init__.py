"""Report results: an HTML page, figures, Markdown pages, CSV and Parquet files, terminal tables."""

from driftproof.report.claims import Claim, evaluate_claims
from driftproof.report.exports import flat_rows, write_csv, write_parquet
from driftproof.report.figure_data import ANALYSES, FigureData
from driftproof.report.findings import summary_sentences
from driftproof.report.notes import metadata_notes, table_notes
from driftproof.report.page import write_report
from driftproof.report.summary import (
    benchmark_tables,
    citable_values,
    load_archives,
    read_page,
    render_placeholders,
    render_results_page,
    render_summary,
)
from driftproof.report.terminal import plot_text, table_text

__all__ = [
    "ANALYSES",
    "Claim",
    "FigureData",
    "benchmark_tables",
    "citable_values",
    "evaluate_claims",
    "flat_rows",
    "load_archives",
    "metadata_notes",
    "plot_text",
    "read_page",
    "render_placeholders",
    "render_results_page",
    "render_summary",
    "summary_sentences",
    "table_notes",
    "table_text",
    "write_csv",
    "write_parquet",
    "write_report",
]
