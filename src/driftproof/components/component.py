"""The base of everything a method is composed of."""

import inspect
from collections.abc import Iterable
from typing import Any

from torch import nn

from driftproof.components.prepare_context import PrepareContext
from driftproof.components.step import Step
from driftproof.network import Network

__all__ = ["Component", "Compose"]

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Component(nn.Module):
    """One choice of a method: a loss, a selection, a regularizer or a statistics rule.

    What a part remembers are buffers, so it moves with `.to()` and is saved with the adapter; a buffer may be None
    until it is first known. Tensors are replaced, never written in place: a snapshot of a part is a copy of its
    references. An adapter works on copies of the parts it is given, so one instance can serve several adapters.

    Constructor arguments are kept as attributes of the same name; the printed form is read from them.

    Attributes:
        needs_features: Whether the part reads `step.features`.
        varies: Why the work of the part differs from batch to batch, in words; None where it is always the same, so
            that a step can be recorded once and replayed.
    """

    needs_features = False
    dynamic_reason: str | None = None

    @property
    def prepared(self) -> bool:
        """Whether nothing is missing that only source data can give."""
        return True

    def prepare(self, preparation: PrepareContext) -> None:
        """Learn from source data, before deployment."""

    @property
    def found(self) -> dict[str, float]:
        """What source data told it that belongs beside results, by name."""
        return {}

    def begin(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Start from the beginning; called at construction and at every reset, with the network at its start."""

    def on_batch(self, step: Step) -> None:
        """A batch went well: remember what it taught."""

    def on_step(self, step: Step) -> None:
        """The optimizer has just moved the parameters."""

    def __repr__(self) -> str:
        arguments = inspect.signature(type(self)).parameters.values()
        named = (argument.name for argument in arguments if argument.kind not in _VARIADIC)
        shown = (f"{name}={_shown(getattr(self, name))}" for name in named)
        return f"{type(self).__name__}({', '.join(shown)})"


class Compose(Component):
    """Parts of one axis that act together."""

    def __init__(self, *parts: Component) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    @property
    def members(self) -> Iterable[Any]:
        """The parts, in the order they were given."""
        return iter(self.parts)

    @property
    def needs_features(self) -> bool:  # type: ignore[override]  # a class attribute for single parts
        """Whether any member reads features."""
        return any(part.needs_features for part in self.members)

    @property
    def dynamic_reason(self) -> str | None:  # type: ignore[override]  # a class attribute for single parts
        """The first reason a member gives."""
        return next((part.dynamic_reason for part in self.members if part.dynamic_reason is not None), None)

    @property
    def found(self) -> dict[str, float]:
        """What the members have found."""
        return {name: value for part in self.members for name, value in part.found.items()}

    @property
    def prepared(self) -> bool:
        """Whether every member is."""
        return all(part.prepared for part in self.members)

    def prepare(self, preparation: PrepareContext) -> None:
        """Prepare every member."""
        for part in self.members:
            part.prepare(preparation)

    def begin(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Begin every member."""
        for part in self.members:
            part.begin(network, parameters)

    def on_batch(self, step: Step) -> None:
        """Tell every member."""
        for part in self.members:
            part.on_batch(step)

    def on_step(self, step: Step) -> None:
        """Tell every member."""
        for part in self.members:
            part.on_step(step)


def _shown(value: object) -> str:
    if inspect.isfunction(value) or inspect.isclass(value):
        return value.__qualname__
    return repr(value)
