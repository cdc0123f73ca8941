"""Return a few weights to their source values (CoTTA)."""

import torch

from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.regularizers.base import Regularizer

__all__ = ["StochasticRestore"]


class StochasticRestore(Regularizer):
    """After each step every scalar returns to its source value with a small probability, independently.

    Args:
        probability: p; CoTTA uses 0.01 on the CIFAR sets and 0.001 on ImageNet.
    """

    def __init__(self, probability: float = 0.01) -> None:
        super().__init__()
        if not 0.0 <= probability <= 1.0:
            raise ConfigurationError(f"Expected `probability` to be in 0..1, but got {probability}.")
        self.probability = probability

    def on_step(self, step: Step) -> None:
        """Draw which scalars return, and return them."""
        with torch.no_grad():
            for moved, start in zip(step.parameters, step.source_parameters, strict=True):
                draw = torch.rand(moved.shape, generator=step.generator, device=moved.device)
                moved.copy_(torch.where(draw < self.probability, start, moved))
