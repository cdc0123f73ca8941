"""The paper's results tables, what its figures look into, and the demo, as lists of cells."""

from collections.abc import Callable

from driftproof.bench.suites.camvid import camvid, camvid_parts, camvid_rates, camvid_x10, camvid_x100, camvid_x1000
from driftproof.bench.suites.demo import demo
from driftproof.bench.suites.driving import s1, s3b, s4, table3, table4
from driftproof.bench.suites.main_tables import table1, table2, table5
from driftproof.bench.suites.figures import gradients, rules
from driftproof.bench.suites.ablations import endurance, milder, open_choices
from driftproof.bench.suites.secondary_tables import s2, s3, s5, table6, table7, table8
from driftproof.bench.tables import Suite
from driftproof.validation import check_choice

__all__ = ["SUITES", "suite"]

SUITES: dict[str, Callable[[], Suite]] = {
    make.__name__: make
    for make in (
        demo, table1, table2, table3, table4, table5, table6, table7, table8, s1, s2, s3, s3b, s4, s5,
        camvid, camvid_x10, camvid_x100, camvid_x1000, camvid_parts, camvid_rates,
        rules, gradients, open_choices, endurance, milder,
    )
}  # fmt: skip


def suite(name: str) -> Suite:
    """The suite of this name.

    Examples:
        >>> suite("table2").rounds
        1
    """
    return SUITES[check_choice("suite", name, SUITES)]()
