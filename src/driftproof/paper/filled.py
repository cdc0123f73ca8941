"""The paper's tables and ours, filled from a results folder."""

from functools import cache

from driftproof.bench import FilledTable, Results
from driftproof.paper.suites import all_tables

__all__ = ["fill_tables"]


@cache
def fill_tables(results: Results) -> list[FilledTable]:
    """List the tables of all suites that have at least one measured number."""
    return results.tables(all_tables())
