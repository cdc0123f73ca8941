"""Import optional dependencies. Those for data frames and figures are imported from here, as `pl` and `alt`."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from driftproof.errors import MissingPackageError

if TYPE_CHECKING:
    import altair as alt
    import polars as pl

__all__ = ["alt", "pl", "require"]

_MODULES = {"alt": "altair", "pl": "polars"}


def require(module: str, purpose: str, install: str = "'driftproof[data]'") -> ModuleType:
    """Import and return an optional module, or raise `MissingPackageError`.

    Args:
        module: Name of the module.
        purpose: What needs it, as the subject of a sentence.
        install: Argument of `pip install`.

    Examples:
        >>> require("json", "Reading notes").dumps([1])
        '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(f"{purpose} needs {package}. Install it with `pip install {install}`.") from error


if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        """Import a library of results on first use."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return require(_MODULES[name], "Reading and reporting results", "'driftproof[report]'")
