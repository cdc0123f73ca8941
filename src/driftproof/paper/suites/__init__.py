"""Suites: the paper's tables and figures, our ablations, and the demo, as lists of runs.

The names of suites are those of stored results, so they stay as they are even where a function is named otherwise.
"""

from collections.abc import Callable
from functools import cache

from driftproof.bench.demo import demo
from driftproof.bench.tables import Suite, Table
from driftproof.paper.suites.ablations import ablations, long_run_held_out, lower_severity
from driftproof.paper.suites.camvid import (
    camvid,
    camvid_ablation,
    camvid_lr_search,
    camvid_x10,
    camvid_x100,
    camvid_x1000,
)
from driftproof.paper.suites.driving import s1, s3b, s4, table3, table4
from driftproof.paper.suites.figures import gradients, selection_rules
from driftproof.paper.suites.main_tables import table1, table2, table5
from driftproof.paper.suites.secondary_tables import s2, s3, s5, table6, table7, table8
from driftproof.validation import check_choice

__all__ = ["SUITES", "all_tables", "suite"]

SUITES: dict[str, Callable[[], Suite]] = {
    "demo": demo,
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "table6": table6,
    "table7": table7,
    "table8": table8,
    "s1": s1,
    "s2": s2,
    "s3": s3,
    "s3b": s3b,
    "s4": s4,
    "s5": s5,
    "camvid": camvid,
    "camvid_x10": camvid_x10,
    "camvid_x100": camvid_x100,
    "camvid_x1000": camvid_x1000,
    "camvid_parts": camvid_ablation,
    "camvid_rates": camvid_lr_search,
    "rules": selection_rules,
    "gradients": gradients,
    "open_choices": ablations,
    "endurance": long_run_held_out,
    "milder": lower_severity,
}


def suite(name: str) -> Suite:
    """Build a suite by name.

    Examples:
        >>> suite("table2").rounds
        1
    """
    return SUITES[check_choice("suite", name, SUITES)]()


@cache
def all_tables() -> tuple[Table, ...]:
    """Return the tables of all suites."""
    return tuple(table for make in SUITES.values() for table in make().tables)
