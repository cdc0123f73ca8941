"""Check names, keywords and learning rates, and tell similar items apart."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, SupportsFloat, TypeVar, get_args

from driftproof.errors import ConfigurationError

__all__ = ["check_choice", "check_keywords", "check_learning_rate", "distinguishing_items"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_SYNONYMS = {
    "learning_rate": "lr",
    "step_size": "lr",
    "filter": "select",
    "params": "scope",
    "parameters": "scope",
    "entropy_weight": "mean_entropy",
    "lambda_max": "mean_entropy",
    "penalty": "regularizer",
    "score": "novelty",
    "random_state": "seed",
    "dtype": "precision",
    "backend": "engine",
    "objective": "loss",
    "criterion": "loss",
    "ema": "teacher",
    "scheduler": "lr_schedule",
}
"""Other words for our keywords, which are not spelled alike."""

_MAX_LISTED = 30
"""Most names that an error message lists."""


def distinguishing_items(fields: Mapping[str, object], *others: Mapping[str, object]) -> list[str]:
    """Return the fields, as `name=value`, in which a mapping differs from any of the others.

    Args:
        fields: The mapping to describe.
        others: The mappings to tell it from.

    Examples:
        >>> distinguishing_items({"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0})
        ['lr=0.1']
    """
    return [
        f"{name}={value}"
        for name, value in fields.items()
        if any(name not in other or other[name] != value for other in others)
    ]


def check_choice(kind: str, name: object, known: Iterable[str], *, best: str | None = None) -> str:
    """Return `name` if it is a known choice, else raise with the closest choices.

    Args:
        kind: What the name refers to, such as "method".
        name: The name to check.
        known: The valid choices.
        best: The choice to suggest, where it is not the one spelled most alike.

    Examples:
        >>> check_choice("method", "tnet", ["tent", "eata"])
        Traceback (most recent call last):
        driftproof.errors.ConfigurationError: Expected a known method, but got 'tnet'. Did you mean tent?
    """
    names = list(known)
    if isinstance(name, str) and name in names:
        return name
    near = get_close_matches(str(name), names, n=3) if best is None else [best]
    advice = f"Did you mean {' or '.join(near)}?" if near else f"Choose from {_format_names(names)}."
    raise ConfigurationError(f"Expected a known {kind}, but got {name!r}. {advice}")


def check_keywords(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorate a function to refuse keywords it does not take, with the closest ones it does.

    Examples:
        >>> @check_keywords
        ... def tent(model, *, lr=1e-3):
        ...     return lr
        >>> tent(None, step_size=1)
        Traceback (most recent call last):
        driftproof.errors.ConfigurationError: Expected a known keyword of tent, but got 'step_size'. Did you mean lr?
    """
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__")
    known = list(_keywords(signature))

    @wraps(function)
    def checked(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        for keyword in kwargs:
            if keyword in known:
                continue
            if keyword in ("lr", "learning_rate") and "lr" not in known and "optimizer" in known:
                raise ConfigurationError(
                    f"Expected the learning rate of {name} in `optimizer`, but got `{keyword}`. "
                    "Pass `optimizer=functools.partial(torch.optim.Adam, lr=1e-3)`."
                )
            synonym = _SYNONYMS.get(keyword)
            check_choice(f"keyword of {name}", keyword, known, best=synonym if synonym in known else None)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigurationError(f"Expected `{name}(model, keyword=value, …)`, but got {error}.") from error
        return function(*args, **kwargs)

    return checked


def _keywords(signature: inspect.Signature) -> Iterable[str]:
    for parameter in signature.parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield parameter.name
            continue
        for options in get_args(parameter.annotation):  # of Unpack[AdapterOptions]
            yield from options.__annotations__


def check_learning_rate(lr: object) -> float:
    """Return a learning rate if it is a finite number of at least 0, else raise.

    Examples:
        >>> check_learning_rate("1e-3")
        Traceback (most recent call last):
        driftproof.errors.ConfigurationError: Expected `lr` to be a number of at least 0, but got '1e-3'. Write it \
without quotes.
    """
    if isinstance(lr, SupportsFloat) and not isinstance(lr, bool) and math.isfinite(lr) and float(lr) >= 0:
        return float(lr)
    advice = " Write it without quotes." if isinstance(lr, str) else " Choose one such as 1e-3."
    raise ConfigurationError(f"Expected `lr` to be a number of at least 0, but got {lr!r}.{advice}")


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{', '.join(names[:_MAX_LISTED])}{more}"
