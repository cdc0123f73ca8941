"""The options `--method` and `--option`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.cli.completion import METHODS
from driftproof.errors import ConfigurationError

if TYPE_CHECKING:
    from driftproof.bench.spec import Option

__all__ = ["MAX_SEED", "MethodName", "MethodOptions", "parse_list", "parse_method_options", "parse_option_value"]

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
    return name, parse_option_value(value)


def parse_option_value(text: str) -> "Option":
    """Return a number, true, false or null as such, and anything else as text."""
    try:
        parsed: Option = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(parsed, list | dict) else parsed


def parse_list(option: str, text: str) -> list[str]:
    """Split a comma-separated option; raise an error if it is empty, as from an unset variable."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigurationError(f"Expected `{option}` to be a list separated by commas, but got {text!r}.")
    return words
