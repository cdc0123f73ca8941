"""The base class of everything a method is composed of."""

import inspect
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from typing_extensions import Self

from driftproof.components.describe import describe_value
from driftproof.components.prepare_context import PrepareContext
from driftproof.components.step import Step
from driftproof.network import Network

__all__ = ["Component", "Compose"]

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Component(nn.Module):
    """One choice of a method: a loss, a selection, a regularizer, a statistics rule and so on.

    State lives in buffers, so it moves with `.to()`, is saved with the adapter, and is undone with a bad batch. A
    buffer may be None until its shape is known. Assign a new tensor to a buffer (`self.count = self.count + 1`) rather
    than writing into it (`self.count += 1`): undoing a batch needs the old tensor. An adapter copies the components it
    is given, so one instance can serve several adapters. `driftproof.testing.check_component` checks all of this.

    Attributes:
        needs_features: Whether the component reads `step.features`.
        needs_source_features: Whether the component reads `step.source_features`.
        dynamic_reason: Why this component is data-dependent and cannot be captured in a CUDA graph; None if it can.
    """

    needs_features = False
    needs_source_features = False
    dynamic_reason: str | None = None

    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ANN401  # whatever the subclass takes
        """Remember the constructor's arguments, so that a description exists whatever `__init__` stores."""
        component = super().__new__(cls)
        try:
            bound = inspect.signature(cls).bind_partial(*args, **kwargs)
        except (TypeError, ValueError):  # `__init__` raises the better error
            bound = None
        component.__dict__["_arguments"] = {} if bound is None else dict(bound.arguments)
        return component

    @property
    def prepared(self) -> bool:
        """Whether everything that only source data can give is known."""
        return True

    def prepare(self, context: PrepareContext) -> None:
        """Learn from source data, before deployment."""

    @property
    def prepared_values(self) -> dict[str, float]:
        """Numbers found in source data that belong beside results, by name."""
        return {}

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Return to the initial state; called at construction and at every reset, with the network at its start."""

    def on_batch(self, step: Step) -> None:
        """Update the state after a good batch, one that is finite and has something to learn from."""

    def on_step(self, step: Step) -> None:
        """Update the state after the optimizer has moved the parameters."""

    def on_reset(self, step: Step, condition: Tensor) -> None:
        """Update the state after a reset of the weights, where a 0-d boolean tensor holds; comes after `on_step`.

        What a component remembers of the network that was reset should go with it.
        """

    def __repr__(self) -> str:
        try:
            parameters = inspect.signature(type(self)).parameters.values()
        except (TypeError, ValueError):
            return f"{type(self).__name__}()"
        named = {parameter.name: parameter.default for parameter in parameters if parameter.kind not in _VARIADIC}
        values = {name: self._value_of(name, default) for name, default in named.items()}
        shown = [
            f"{name}={describe_value(v)}" for name, v in values.items() if v is not None or named[name] is not None
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _value_of(self, name: str, default: object) -> object:
        """The attribute of this name as it is now, or else the constructor's argument."""
        modules = self.__dict__.get("_modules", {})
        return self.__dict__.get(name, modules.get(name, self._arguments.get(name, default)))


class Compose(Component):
    """Several components of one kind that act together."""

    def __init__(self, *components: Component) -> None:
        super().__init__()
        self._components = nn.ModuleList(components)

    @property
    def components(self) -> Iterable[Any]:
        """The components, in the order they were given."""
        return iter(self._components)

    @property
    def needs_features(self) -> bool:  # type: ignore[override]  # a class attribute for single components
        """Whether any component reads features."""
        return any(component.needs_features for component in self.components)

    @property
    def needs_source_features(self) -> bool:  # type: ignore[override]
        """Whether any component reads the frozen network's features."""
        return any(component.needs_source_features for component in self.components)

    @property
    def dynamic_reason(self) -> str | None:  # type: ignore[override]
        """The first reason that a component gives."""
        return next((one.dynamic_reason for one in self.components if one.dynamic_reason is not None), None)

    @property
    def prepared_values(self) -> dict[str, float]:
        """The values of all components."""
        return {name: value for component in self.components for name, value in component.prepared_values.items()}

    @property
    def prepared(self) -> bool:
        """Whether every component is."""
        return all(component.prepared for component in self.components)

    def prepare(self, context: PrepareContext) -> None:
        """Prepare every component."""
        for component in self.components:
            component.prepare(context)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Reset every component."""
        for component in self.components:
            component.reset_state(network, parameters)

    def on_batch(self, step: Step) -> None:
        """Update every component."""
        for component in self.components:
            component.on_batch(step)

    def on_step(self, step: Step) -> None:
        """Update every component."""
        for component in self.components:
            component.on_step(step)

    def on_reset(self, step: Step, condition: Tensor) -> None:
        """Update every component."""
        for component in self.components:
            component.on_reset(step, condition)
