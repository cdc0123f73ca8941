"""Taking one optimiser step back."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Undo", "all_finite"]


class Undo:
    """Remembers parameters and optimiser state before a step, so that a bad step can be taken back exactly.

    The copies live in buffers that are reused from step to step.
    """

    def __init__(self, optimiser: torch.optim.Optimizer) -> None:
        self._optimiser = optimiser
        self._parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        self._entries: list[tuple[Any, dict[str, Any]]] = []
        self._copies: list[Tensor] = []

    def remember(self) -> None:
        """Copy everything a step may change."""
        self._entries = [(parameter, dict(state)) for parameter, state in self._optimiser.state.items()]
        live = self.live()
        if len(live) != len(self._copies):
            self._copies = [torch.empty_like(tensor) for tensor in live]
        with torch.no_grad():
            torch._foreach_copy_(self._copies, live)

    def restore(self) -> None:
        """Put everything back where it was."""
        self._optimiser.state.clear()
        for parameter, state in self._entries:
            self._optimiser.state[parameter] = state
        with torch.no_grad():
            torch._foreach_copy_(self.live(), self._copies)

    def live(self) -> list[Tensor]:
        """The tensors a step changes: parameters first, then the optimiser's own."""
        states = self._optimiser.state.values()
        return self._parameters + [value for state in states for value in state.values() if isinstance(value, Tensor)]


def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Whether no entry of any tensor is NaN or infinite, as a tensor: nothing is fetched from the device."""
    floating = [tensor.detach() for tensor in tensors if torch.is_floating_point(tensor) and tensor.numel()]
    largest = torch._foreach_norm(floating, float("inf"))
    return torch.stack([value.to(largest[0].device) for value in largest]).isfinite().all()
