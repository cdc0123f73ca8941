"""The benchmark: the paper's tables as cells that can be run, interrupted, gone on with, and compared."""

from driftproof.bench.methods import METHODS, build_method
from driftproof.bench.results import Measured, Results, Value, filled
from driftproof.bench.spec import Spec
from driftproof.bench.store import Store
from driftproof.bench.suites import SUITES, suite

__all__ = ["METHODS", "SUITES", "Measured", "Results", "Spec", "Store", "Value", "build_method", "filled", "suite"]
