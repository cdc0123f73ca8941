"""Packages that only some of the work needs."""

import importlib
from types import ModuleType

from driftproof.errors import MissingPackageError

__all__ = ["require"]


def require(module: str, purpose: str, install: str = "'driftproof[data]'") -> ModuleType:
    """Import a module that may be missing.

    Args:
        module: Its name.
        purpose: What it is needed for, as the subject of a sentence.
        install: What to hand to `pip install`.

    Examples:
        >>> require("json", "Reading notes").dumps([1])
        '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(f"{purpose} needs {package}. Install it with `pip install {install}`.") from error
