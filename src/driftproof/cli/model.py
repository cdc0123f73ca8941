"""The options `--model`, `--weights` and `--classes`."""

import importlib
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from driftproof.cli.completion import NETWORKS
from driftproof.errors import ConfigurationError, ModelError
from driftproof.validation import check_choice

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ClassCount", "ModelName", "Weights", "load_model"]

ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Model or function that builds one, as `package.module:name`, importable from the current folder; or the "
        "name of a built-in network, such as wrn40_2.",
        autocompletion=lambda: list(NETWORKS),
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(help="Weights: safetensors or a torch state dict; without `--model`, a file of `driftproof train`."),
]
ClassCount = Annotated[int | None, typer.Option(min=1, help="Number of classes of a built-in network.")]

_INTERNAL_FILES = (__file__, importlib.__file__, "<frozen")

_Result = TypeVar("_Result")


def load_model(name: str | None, weights: Path | None, classes: int | None = None) -> "nn.Module":
    """Build or import a model and load its weights.

    Output of user code is redirected to stderr, so that stdout stays clean.

    Args:
        name: `package.module:name`, or the name of a built-in network; None if the weights name it.
        weights: File of weights; None keeps the initial ones.
        classes: Number of classes of a built-in network.
    """
    from driftproof.models import build_from_checkpoint, load_checkpoint

    if name is None and weights is None:
        raise ConfigurationError("Expected `--model` or `--weights`, but got neither.")
    if classes is not None and (name is None or ":" in name):
        raise ConfigurationError("Expected `--classes` only with a built-in network, but got it with another model.")
    with redirect_stdout(sys.stderr):
        if name is None:
            assert weights is not None
            return build_from_checkpoint(weights)
        model = _load_user_model(name) if ":" in name else _build_builtin(name, classes)
        return model if weights is None else load_checkpoint(model, weights)


def _build_builtin(name: str, classes: int | None) -> "nn.Module":
    from driftproof.models import MODELS, build_model

    if name not in MODELS and "." in name:
        raise ConfigurationError(
            f"Expected `--model` to be `package.module:name` or a built-in network, but got {name!r}. "
            f"Put a colon before the last part: {':'.join(name.rsplit('.', 1))}."
        )
    return build_model(name, classes=classes)


def _load_user_model(reference: str) -> "nn.Module":
    from torch import nn

    found = _resolve_reference(reference)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        kind = type(found).__name__
        raise ModelError(f"Expected {reference} to be a model or a function that builds one, but got a {kind}.")
    built = _call_user_code(f"calling {reference}", found)
    if not isinstance(built, nn.Module):
        raise ModelError(f"Expected {reference} to return a torch.nn.Module, but it returned a {type(built).__name__}.")
    return built


def _resolve_reference(reference: str) -> object:
    module_name, _, path = reference.partition(":")
    if not module_name or not path:
        raise ConfigurationError(f"Expected `--model` to be `package.module:name`, but got {reference!r}.")
    found: object = _import_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            check_choice(f"name in {module_name}", name, [known for known in dir(found) if not known.startswith("_")])
        found = getattr(found, name)
    return found


def _import_module(name: str) -> ModuleType:
    # Not removed afterwards: a model may import more of its project when it runs.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return _call_user_code(f"importing {name}", lambda: importlib.import_module(name))
    except ModelError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise
        raise ConfigurationError(
            f"Expected `--model` to name a module, but {missing} does not exist. Run the command in the folder that "
            f"holds it, or install it."
        ) from error


def _call_user_code(what: str, call: Callable[[], _Result]) -> _Result:
    """Call user code and convert anything it raises, even `SystemExit`, to `ModelError`."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"Expected {what} to work, but it raised {type(error).__name__}: {error}{_format_location(error)}."
        ) from error


def _format_location(error: BaseException) -> str:
    """Return the file and line in user code that raised an error, if any."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(_INTERNAL_FILES)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
