"""Suites: the paper's tables and figures, our ablations, and the demo, as lists of runs."""

from collections.abc import Callable
from functools import cache, partial

from driftproof.bench.demo import demo
from driftproof.bench.tables import Suite, Table
from driftproof.paper.suites import ablations, classification, driving
from driftproof.validation import check_choice

__all__ = ["SUITES", "all_tables", "suite"]

_ALL = {each.name: each for each in (demo(), *classification.SUITES, *driving.SUITES, *ablations.SUITES)}

_ORDER = (
    "demo", "table1", "table2", "table3", "table4", "table5", "table6", "table7", "table8", "s1", "s2", "s3", "s3b",
    "s4", "s5",
)  # fmt: skip
"""The paper's tables first, in its order."""

SUITES: dict[str, Callable[[], Suite]] = {
    name: partial(_ALL.__getitem__, name)
    for name in dict.fromkeys((*_ORDER, *(each.name for each in driving.SUITES), *_ALL))
}
"""How to make each suite, by name; results are stored under these names."""


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
