"""Check names against known choices, and tell similar items apart."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from driftproof.errors import ConfigurationError

__all__ = ["check_choice", "distinguishing_items"]

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


def check_choice(kind: str, name: object, known: Iterable[str]) -> str:
    """Return `name` if it is a known choice, else raise with the closest choices.

    Args:
        kind: What the name refers to, such as "method".
        name: The name to check.
        known: The valid choices.

    Examples:
        >>> check_choice("method", "tnet", ["tent", "eata"])
        Traceback (most recent call last):
        driftproof.errors.ConfigurationError: Expected a known method, but got 'tnet'. Did you mean tent?
    """
    names = list(known)
    if isinstance(name, str) and name in names:
        return name
    near = get_close_matches(str(name), names, n=3)
    advice = f"Did you mean {' or '.join(near)}?" if near else f"Choose from {_format_names(names)}."
    raise ConfigurationError(f"Expected a known {kind}, but got {name!r}. {advice}")


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{', '.join(names[:_MAX_LISTED])}{more}"
