"""Functions of the user's own, by name: `my_package.module:function`."""

import hashlib
import importlib
import sys
from collections.abc import Callable
from modulefinder import ModuleFinder
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, TypeVar

from torch import nn

from driftproof.errors import ConfigurationError, DriftproofError, ModelError
from driftproof.validation import check_choice

__all__ = ["call_own", "describe_own_error", "hash_sources", "is_own", "load_named", "load_own_model", "name_of"]

_Result = TypeVar("_Result")
_LIBRARIES = (str(Path(__file__).parents[1]), importlib.__file__, "<frozen")


def is_own(name: str) -> bool:
    """Whether a name is `module:function`, not one of the library's."""
    return ":" in name


def load_named(name: str, *, what: str = "the name") -> Any:  # noqa: ANN401  # whatever the module holds
    """Import what `module:function` names; modules may lie in the current folder.

    Args:
        name: Such as `my_package.methods:cautious`.
        what: What the name was given for, such as `--model`, for error messages.

    Examples:
        >>> load_named("os.path:joi")
        Traceback (most recent call last):
        driftproof.errors.ConfigurationError: Expected a known name in os.path, but got 'joi'. Did you mean join?
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise ConfigurationError(f"Expected {what} to be `package.module:name`, but got {name!r}.")
    found: object = _import_module(module_name, what)
    for part in path.split("."):
        if not hasattr(found, part):
            check_choice(f"name in {module_name}", part, [known for known in dir(found) if not known.startswith("_")])
        found = getattr(found, part)
    return found


def load_own_model(name: str, *, what: str = "the model") -> nn.Module:
    """Return the model that a name stands for: a module, or a function that builds one."""
    found = load_named(name, what=what)
    if not isinstance(found, nn.Module):
        if not callable(found):
            kind = type(found).__name__
            raise ModelError(f"Expected {name} to be a model or a function that builds one, but got a {kind}.")
        found = call_own(f"calling {name}", found)
    if not isinstance(found, nn.Module):
        raise ModelError(f"Expected {name} to return a torch.nn.Module, but it returned a {type(found).__name__}.")
    return found


def name_of(function: Callable[..., Any] | str) -> str:
    """Return the name by which a function can be imported; a name is returned as it is.

    Examples:
        >>> name_of(call_own)
        'driftproof.named:call_own'
    """
    if isinstance(function, str):
        return function
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    name = f"{module}:{path}"
    if module in (None, "__main__") or "<" in path or load_named(name) is not function:
        raise ConfigurationError(
            f"Expected a function that other processes can import by its name, but got {function!r}. "
            "Put it at the top level of a module, such as my_methods.py in the current folder."
        )
    return name


def hash_sources(*names: str | None) -> tuple[tuple[str, str], ...]:
    """Return each name of the user's once, sorted, with a short hash of the source texts that it is made of.

    These are its module and what that imports, at any depth, from the same folder or the same installed package. A
    module that cannot be imported gets the hash `missing`; its runs then fail with the reason.
    """
    return tuple(sorted((name, _hash_source(name)) for name in {*names} if name is not None and is_own(name)))


def _hash_source(name: str) -> str:
    module = name.partition(":")[0]
    try:
        path = getattr(_import_module(module, name), "__file__", None)
    except DriftproofError:
        path = None
    if path is None:
        return "missing"
    content = hashlib.sha256(Path(path).read_bytes())
    for imported in _find_imported(module, Path(path)):
        content.update(imported.read_bytes())
    return content.hexdigest()[:12]


def _find_imported(module: str, path: Path) -> list[Path]:
    """Return the other source files of its folder or installed package that a module imports, without running them."""
    top, *inner = module.split(".")
    if top == __package__:
        return []
    root = path.parents[len(inner) + (path.stem == "__init__")]
    is_installed = root.name in ("site-packages", "dist-packages")
    finder = _Finder([str(root)], top if is_installed else None)
    finder.import_hook(module)
    files = {Path(file) for found in finder.modules.values() if (file := getattr(found, "__file__", None))}
    return sorted(each for each in files - {path} if each.suffix == ".py" and each.is_relative_to(root))


class _Finder(ModuleFinder):
    """Finds imports in a folder; in a folder of installed packages, those of one package only."""

    def __init__(self, path: list[str], package: str | None) -> None:
        super().__init__(path, excludes=[__package__ or ""])
        self._package = package

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:  # noqa: ANN401  # as the base class has it
        if parent is None and self._package not in (None, name):
            raise ImportError(name)
        return super().find_module(name, path, parent)


def call_own(
    what: str, call: Callable[[], _Result], error_type: Callable[[str], DriftproofError] = ModelError
) -> _Result:
    """Call the user's code; what it raises, even `SystemExit`, becomes an error that names the file and line.

    Args:
        what: What is called, such as `calling my_nets:build`.
        call: Calls it.
        error_type: Type of the error.
    """
    try:
        return call()
    except DriftproofError:
        raise
    except (Exception, SystemExit) as error:
        raise describe_own_error(what, error, error_type) from error


def describe_own_error(
    what: str, error: BaseException, error_type: Callable[[str], DriftproofError] = ModelError
) -> DriftproofError:
    """Return an error that names what the user's code raised, and the file and line."""
    return error_type(
        f"Expected {what} to work, but it raised {type(error).__name__}: {error}{_format_location(error)}."
    )


def _import_module(name: str, what: str) -> ModuleType:
    # Not removed afterwards: a module may import more of its project when it runs.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return call_own(f"importing {name}", lambda: importlib.import_module(name))
    except ModelError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise
        raise ConfigurationError(
            f"Expected {what} to name a module, but {missing} does not exist. Run the command in the folder that "
            "holds it, or install it."
        ) from error


def _format_location(error: BaseException) -> str:
    """Return the file and line of the user's code that raised an error, if any."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(_LIBRARIES)]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
