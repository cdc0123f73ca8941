"""Report results: an HTML page, figures, CSV and Parquet files, terminal tables."""

from driftproof.report.exports import flat_rows, write_csv, write_parquet
from driftproof.report.findings import summary_sentences
from driftproof.report.notes import metadata_notes, table_notes
from driftproof.report.page import write_report
from driftproof.report.terminal import plot_text, table_text

__all__ = [
    "flat_rows",
    "metadata_notes",
    "plot_text",
    "summary_sentences",
    "table_notes",
    "table_text",
    "write_csv",
    "write_parquet",
    "write_report",
]
