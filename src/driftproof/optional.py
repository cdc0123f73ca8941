"""Import optional dependencies."""

import importlib
from types import ModuleType

from driftproof.errors import MissingPackageError

__all__ = ["require"]


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
