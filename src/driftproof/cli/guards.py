"""The option `--guard`, and building an adapter with its guards."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftproof.errors import ConfigurationError
from driftproof.guards import GUARDS, Guard
from driftproof.validation import check_choice

if TYPE_CHECKING:
    from torch import nn

    from driftproof.adapter import Adapter
    from driftproof.bench.spec import Option

__all__ = ["GuardNames", "build_guarded"]

_NAMES = (*GUARDS, "none")
_DEFAULT = ("fall_back", "roll_back")

GuardNames = Annotated[
    list[str] | None,
    typer.Option(
        "--guard",
        help=f"What to do when adaptation goes wrong, repeatable: {', '.join(_NAMES)}. By default predictions fall "
        "back to the model as it was trained, and the adapter rolls back to its last healthy state.",
        autocompletion=lambda: list(_NAMES),
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
        guards: Names of guards, or "none"; None or empty for falling back and rolling back.
    """
    from driftproof.methods.by_name import build_method

    keywords: dict[str, Any] = {**options, "guard": _make_guards(guards or _DEFAULT)}
    return build_method(method, model, keywords)


def _make_guards(names: Sequence[str]) -> tuple[Guard, ...]:
    chosen = [check_choice("guard", name.replace("-", "_"), _NAMES) for name in names]
    if "none" in chosen and len(chosen) > 1:
        raise ConfigurationError(f"Expected `--guard none` alone, but got {', '.join(chosen)}.")
    return tuple(GUARDS[name]() for name in dict.fromkeys(chosen) if name != "none")
