"""The paper: its suites, its numbers and claims, our ablations, and how the results page is written."""

from driftproof.paper.suites import SUITES, all_tables, suite

__all__ = ["SUITES", "all_tables", "suite"]
