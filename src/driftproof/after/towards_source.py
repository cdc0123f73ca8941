"""Ways back to the source model, a little at every step."""

import torch

from driftproof.after.base import After, Resettable, check_share
from driftproof.components import Step

__all__ = ["PullToSource", "StochasticRestore"]


class PullToSource(After):
    """θ ← θ + rate·(θ_o − θ), weight ensembling with the source model.

    Args:
        rate: The share of the way back to the source, in [0, 1]; 0 changes nothing.
    """

    def __init__(self, rate: float = 0.01) -> None:
        super().__init__()
        check_share("rate", rate)
        self.rate = rate

    def after_step(self, step: Step, state: Resettable) -> None:
        """Move all parameters a little towards the source."""
        torch._foreach_lerp_(list(step.parameters), list(step.source_parameters), self.rate)


class StochasticRestore(After):
    """Every scalar returns to its source value with a small probability, independently (CoTTA).

    Args:
        probability: p; CoTTA uses 0.01 on the CIFAR sets and 0.001 on ImageNet.
    """

    def __init__(self, probability: float = 0.01) -> None:
        super().__init__()
        check_share("probability", probability)
        self.probability = probability

    def after_step(self, step: Step, state: Resettable) -> None:
        """Draw which scalars return, and return them."""
        for now, start in zip(step.parameters, step.source_parameters, strict=True):
            draw = torch.rand(now.shape, generator=step.generator, device=now.device)
            now.copy_(torch.where(draw < self.probability, start, now))
