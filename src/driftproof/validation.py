"""Names that may be mistyped, or mistaken for each other."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from driftproof.errors import ConfigurationError

__all__ = ["check_choice", "distinguishing_items"]

_LISTED = 30
"""Names that a message has room for."""


def distinguishing_items(facts: Mapping[str, object], *others: Mapping[str, object]) -> list[str]:
    """What tells one thing from others that would be called the same, in words.

    Args:
        facts: Of the one, by name.
        others: Of the others.

    Examples:
        >>> distinguishing_items({"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0})
        ['lr=0.1']
    """
    return [
        f"{name}={value}"
        for name, value in facts.items()
        if any(name not in other or other[name] != value for other in others)
    ]


def check_choice(kind: str, name: object, known: Iterable[str]) -> str:
    """The name, refused with the nearest known ones unless it is one of them; with the first if none is near.

    Args:
        kind: What is named, such as "method".
        name: As given.
        known: What there is.

    Examples:
        >>> check_choice("method", "tnet", ["tent", "eata"])
        Traceback (most recent call last):
        driftproof.errors.ConfigurationError: Expected a known method, but got 'tnet'. Did you mean tent?
    """
    names = list(known)
    if isinstance(name, str) and name in names:
        return name
    near = get_close_matches(str(name), names, n=3)
    advice = f"Did you mean {' or '.join(near)}?" if near else f"There is {_listed(names)}."
    raise ConfigurationError(f"Expected a known {kind}, but got {name!r}. {advice}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"
