"""The options `--method` and `--option`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.cli.completion import METHODS
from driftproof.errors import ConfigurationError

if TYPE_CHECKING:
    from driftproof.bench.spec import Option

__all__ = ["MAX_SEED", "MethodName", "MethodOptions", "parse_method_options"]

MAX_SEED = 2**63 - 1
"""The largest seed that random generators and result files can hold."""

MethodName = Annotated[
    str,
    typer.Option(
        "--method", help="Method, such as adapt, tent+crowd, bn_adapt or source.", autocompletion=lambda: list(METHODS)
    ),
]
MethodOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="Option of the method, such as lr=0.0001 or margin=-0.2; repeatable."),
]


def parse_method_options(texts: Sequence[str] | None) -> "dict[str, Option]":
    """Parse the values of `--option name=value`.

    Examples:
        >>> parse_method_options(["lr=0.001", "optimizer=sgd"])
        {'lr': 0.001, 'optimizer': 'sgd'}
    """
    return dict(map(_parse_option, texts or ()))


def _parse_option(text: str) -> "tuple[str, Option]":
    name, _, value = text.partition("=")
    if not name or not value:
        raise ConfigurationError(f"Expected `--option` to be `name=value`, but got {text!r}.")
    try:
        parsed = json.loads(value)
    except ValueError:
        return name, value
    return name, value if isinstance(parsed, list | dict) else parsed
