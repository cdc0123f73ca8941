"""Results written up: a page, figures, files for other programs, and tables for the terminal."""

from driftproof.report.caveats import metadata_notes, table_notes
from driftproof.report.claims import Claim, evaluate_claims
from driftproof.report.exports import flat_rows, write_csv, write_parquet
from driftproof.report.findings import summary_sentences
from driftproof.report.insights import ANALYSES, FigureData
from driftproof.report.page import write_report
from driftproof.report.summary import load_archives, benchmark_tables, render_placeholders, read_page, citable_values, render_summary, render_results_page
from driftproof.report.terminal import plot_text, table_text

__all__ = [
    "ANALYSES",
    "Claim",
    "FigureData",
    "load_archives",
    "benchmark_tables",
    "metadata_notes",
    "table_notes",
    "evaluate_claims",
    "plot_text",
    "render_placeholders",
    "flat_rows",
    "read_page",
    "citable_values",
    "render_summary",
    "table_text",
    "summary_sentences",
    "write_csv",
    "write_parquet",
    "write_report",
    "render_results_page",
]
