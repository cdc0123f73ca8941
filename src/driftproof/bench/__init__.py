"""The benchmark: runs that can be interrupted, resumed, extended and compared.

Results are read as polars data frames: `load`, `load_runs`, `load_histograms`. Running needs no polars.
"""

import importlib
from typing import TYPE_CHECKING, Any

from driftproof.bench.benchmark import Benchmark
from driftproof.bench.execute import run
from driftproof.bench.methods import METHODS, build_method
from driftproof.bench.spec import Spec
from driftproof.bench.store import Store

if TYPE_CHECKING:
    from driftproof.bench.frames import load, load_histograms, load_runs
    from driftproof.bench.results import FilledTable, Results, Value, fill_table

__all__ = [
    "METHODS",
    "Benchmark",
    "FilledTable",
    "Results",
    "Spec",
    "Store",
    "Value",
    "build_method",
    "fill_table",
    "load",
    "load_histograms",
    "load_runs",
    "run",
]

_NEED_POLARS = {
    **dict.fromkeys(("load", "load_histograms", "load_runs"), "frames"),
    **dict.fromkeys(("FilledTable", "Results", "Value", "fill_table"), "results"),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # as Python calls it
    """Import what needs polars on first use."""
    if name not in _NEED_POLARS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NEED_POLARS[name]}"), name)
