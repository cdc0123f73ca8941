"""The benchmark: the paper's tables as runs that can be interrupted, resumed, extended and compared."""

from driftproof.bench.methods import METHODS, build_method
from driftproof.bench.results import FilledTable, Results, Value, fill_table
from driftproof.bench.spec import Spec
from driftproof.bench.store import Store
from driftproof.bench.suites import SUITES, suite

__all__ = [
    "METHODS",
    "SUITES",
    "FilledTable",
    "Results",
    "Spec",
    "Store",
    "Value",
    "build_method",
    "fill_table",
    "suite",
]
