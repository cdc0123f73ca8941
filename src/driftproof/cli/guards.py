"""The option `--guard`, and building an adapter with its guards."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftproof.errors import ConfigurationError
from driftproof.validation import check_choice

if TYPE_CHECKING:
    from torch import nn

    from driftproof.adapter import Adapter
    from driftproof.bench.spec import Option
    from driftproof.guards import Guard

__all__ = ["GUARDS", "GuardNames", "build_guarded"]

GUARDS = ("fall_back", "roll_back", "pause", "reset", "warn", "none")
_DEFAULT = ("fall_back", "roll_back")

GuardNames = Annotated[
    list[str] | None,
    typer.Option(
        "--guard",
        help=f"What to do when adaptation goes wrong, repeatable: {', '.join(GUARDS)}. By default predictions fall "
        "back to the model as it was trained, and the adapter rolls back to its last healthy state.",
        autocompletion=lambda: list(GUARDS),
    ),
]


def build_guarded(
    method: str, model: "nn.Module", options: "Mapping[str, Option]", guards: Sequence[str] | None = None
) -> "Adapter":
    """Build the adapter of a method with guards.

    Args:
        method: Name of the method.
        model: The trained model.
        options: Options of the method.
        guards: Names in `GUARDS`; None or empty for falling back and rolling back.
    """
    from driftproof.bench.methods import build_method

    keywords: dict[str, Any] = {**options, "guard": _make_guards(guards or _DEFAULT)}
    return build_method(method, model, keywords)


def _make_guards(names: Sequence[str]) -> "tuple[Guard, ...]":
    from driftproof import guards

    makers: dict[str, Callable[[], Guard]] = {
        "fall_back": guards.FallBack,
        "roll_back": guards.RollBack,
        "pause": guards.Pause,
        "reset": guards.Reset,
        "warn": guards.Warn,
    }
    chosen = [check_choice("guard", name.replace("-", "_"), GUARDS) for name in names]
    if "none" in chosen and len(chosen) > 1:
        raise ConfigurationError(f"Expected `--guard none` alone, but got {', '.join(chosen)}.")
    return tuple(makers[name]() for name in dict.fromkeys(chosen) if name != "none")
