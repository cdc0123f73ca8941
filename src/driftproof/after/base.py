"""The base class of what follows an optimizer step."""

from typing import Protocol

from torch import Tensor

from driftproof.components import Component, Step
from driftproof.errors import ConfigurationError

__all__ = ["After", "Resettable", "check_share"]


class Resettable(Protocol):
    """What `After` components may ask of the adapter's state."""

    def reset_where(self, condition: Tensor, share: Tensor | float = 1.0) -> None:
        """Return weights, optimizer and teacher to their start where a 0-d boolean tensor holds.

        Args:
            condition: Whether to reset.
            share: How many of the trainable tensors return, the last ones in the order of the network.
        """


class After(Component):
    """Acts on the parameters after each optimizer step; a step that is undone undoes this too.

    Examples:
        The smallest new one: keep the parameters below one.

        >>> class Clamp(After):
        ...     def after_step(self, step, state):
        ...         for parameter in step.parameters:
        ...             parameter.clamp_(max=1.0)
    """

    resets = False
    """Whether it calls `state.reset_where`, which needs an optimizer with a known initial state."""

    def after_step(self, step: Step, state: Resettable) -> None:
        """Change `step.parameters` in place, or call `state.reset_where`; runs without gradients."""
        raise NotImplementedError


def check_share(name: str, value: float) -> None:
    """Refuse a number outside 0..1."""
    if not 0.0 <= value <= 1.0:
        raise ConfigurationError(f"Expected `{name}` to be in 0..1, but got {value}.")
