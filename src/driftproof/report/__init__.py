"""Results written up: a page, figures, files for other programs, and tables for the terminal."""

from driftproof.report.caveats import caveats, caveats_of
from driftproof.report.claims import Claim, claims
from driftproof.report.exports import flat_rows, write_csv, write_parquet
from driftproof.report.findings import told
from driftproof.report.insights import ANALYSES, Insight
from driftproof.report.page import write_report
from driftproof.report.summary import archives, beside, filled_in, page_text, quotable, summary, written_up
from driftproof.report.terminal import curve_text, table_text

__all__ = [
    "ANALYSES",
    "Claim",
    "Insight",
    "archives",
    "beside",
    "caveats",
    "caveats_of",
    "claims",
    "curve_text",
    "filled_in",
    "flat_rows",
    "page_text",
    "quotable",
    "summary",
    "table_text",
    "told",
    "write_csv",
    "write_parquet",
    "write_report",
    "written_up",
]
