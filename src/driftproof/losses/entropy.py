"""Entropy of the prediction."""

from torch import Tensor

from driftproof.components import Step
from driftproof.losses.base import Loss

__all__ = ["Entropy"]


class Entropy(Loss):
    """H(ŷ) = −Σ_k ŷ^k ln ŷ^k: be sure of what you say."""

    def per_sample(self, step: Step) -> Tensor:
        """The entropy of each prediction."""
        return step.entropies
