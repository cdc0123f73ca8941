"""The benchmark: runs that can be interrupted, resumed, extended and compared."""

from driftproof.bench.methods import METHODS, build_method
from driftproof.bench.results import FilledTable, Results, Value, fill_table
from driftproof.bench.spec import Spec
from driftproof.bench.store import Store

__all__ = [
    "METHODS",
    "FilledTable",
    "Results",
    "Spec",
    "Store",
    "Value",
    "build_method",
    "fill_table",
]
