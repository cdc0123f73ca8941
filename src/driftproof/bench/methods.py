"""Methods by the names used on the command line and in result files, and the guards of their benchmark runs."""

from collections.abc import Mapping

from driftproof.guards import Guard
from driftproof.methods.by_name import (
    METHODS,
    SELECTIONS,
    Option,
    accepted_options,
    build_method,
    method_names,
    parse_method,
    resolve_option,
)

__all__ = [
    "METHODS",
    "SELECTIONS",
    "accepted_options",
    "benchmark_guards",
    "build_method",
    "method_names",
    "parse_method",
]


def benchmark_guards(name: str, options: Mapping[str, Option]) -> tuple[Guard, ...]:
    """Return the guards of a benchmark run: those its options name, else the method's own, without the warning.

    So published methods run as published. `adapt` falls back and rolls back.

    Examples:
        >>> benchmark_guards("tent+crowd", {}), benchmark_guards("tent", {"guard": "pause"})
        ((), (Pause(),))
    """
    own = "fall_back+roll_back" if parse_method(name)[0] == "adapt" else "none"
    return tuple(resolve_option("guard", options.get("guard") or own))
