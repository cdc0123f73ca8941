"""Runs every step as it is written, operation by operation."""

from torch import Tensor

from driftproof.adapter.method import Method
from driftproof.adapter.state import State
from driftproof.adapter.train_step import train_step
from driftproof.record import StepResult

__all__ = ["EagerEngine"]


class EagerEngine:
    """Runs `train_step` anew for every batch.

    The base of all engines, and what they fall back on.

    Args:
        method: The choices.
        state: What the steps change.
    """

    def __init__(self, method: Method, state: State) -> None:
        self.method = method
        self.state = state

    def run(self, images: Tensor) -> StepResult:
        """Predict a batch and learn from it."""
        return train_step(self.method, self.state, images)

    def invalidate(self) -> None:
        """Drop everything that depends on where the state's tensors are: they are about to move."""
