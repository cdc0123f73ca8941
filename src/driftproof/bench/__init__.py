"""The benchmark: runs that can be interrupted, resumed, extended and compared.

Results are read as polars data frames: `load`, `load_runs`, `load_histograms`. Running needs no polars.
"""

import importlib
from typing import TYPE_CHECKING, Any

from driftproof.bench.benchmark import Benchmark
from driftproof.bench.execute import run
from driftproof.bench.spec import Spec
from driftproof.bench.store import Store
from driftproof.methods.by_name import METHODS, build_method

if TYPE_CHECKING:
    from driftproof.bench.frames import load, load_histograms, load_runs
    from driftproof.bench.results import Results, fill_table

_NEED_POLARS = {"load": "frames", "load_histograms": "frames", "load_runs": "frames"}
_NEED_POLARS |= {"Results": "results", "fill_table": "results"}

__all__ = ["METHODS", "Benchmark", "Results", "Spec", "Store", "build_method", "fill_table"]
__all__ += ["load", "load_histograms", "load_runs", "run"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # as Python calls it
    """Import what needs polars on first use."""
    if name not in _NEED_POLARS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NEED_POLARS[name]}"), name)
