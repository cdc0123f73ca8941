"""Results written up: a page, figures, files for other programs, and tables for the terminal."""

from driftproof.report.exports import flat_rows, write_csv, write_parquet
from driftproof.report.findings import told
from driftproof.report.page import write_report
from driftproof.report.terminal import curve_text, table_text

__all__ = ["curve_text", "flat_rows", "table_text", "told", "write_csv", "write_parquet", "write_report"]
