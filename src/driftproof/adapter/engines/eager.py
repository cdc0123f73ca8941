"""Runs every step as it is written, operation by operation."""

import torch
from torch import Tensor

from driftproof.adapter.method import Method
from driftproof.adapter.state import State
from driftproof.adapter.train_step import train_step
from driftproof.network import Network
from driftproof.quarantine import replace_bad
from driftproof.record import StepResult

__all__ = ["EagerEngine", "run_frozen"]


class EagerEngine:
    """Runs `train_step` anew for every batch; the base of all engines, and what they fall back on."""

    def __init__(self, method: Method, state: State) -> None:
        self.method = method
        self.state = state

    def run(self, images: Tensor) -> StepResult:
        """Predict a batch and learn from it."""
        return train_step(self.method, self.state, images)

    @torch.no_grad()
    def run_frozen(self, images: Tensor, good: Tensor) -> tuple[Tensor, Tensor]:
        """The frozen network's logits of the batch that `run` had last, its bad images replaced by a good one.

        With the statistics that a step uses, and with those of its training. They hold until the next batch runs.
        """
        return run_frozen(self.state.source, replace_bad(images, good))

    def invalidate(self) -> None:
        """Drop everything that depends on where the state's tensors are: they are about to move."""


def run_frozen(source: Network, images: Tensor) -> tuple[Tensor, Tensor]:
    """Run the frozen network with the statistics that a step uses, then with those of its training."""
    same = source(images)
    with source.statistics_of_training():
        return same, source(images)
