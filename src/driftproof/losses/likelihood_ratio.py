"""Soft likelihood ratio (ROID)."""

from torch import Tensor

from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.losses.base import Loss

__all__ = ["SoftLikelihoodRatio"]


class SoftLikelihoodRatio(Loss):
    """−Σ_k q^k ln(q^k/(1 − q^k) + 1e-5) with q = min(ŷ, clip): its gradient does not fade where ŷ is certain.

    Args:
        clip: The largest probability that still learns.

    Reference:
        Marsden et al., "Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior
        Correction", WACV 2024.
    """

    def __init__(self, clip: float = 0.99) -> None:
        super().__init__()
        if not 0.0 < clip < 1.0:
            raise ConfigurationError(f"Expected `clip` to be between 0 and 1, but got {clip}.")
        self.clip = clip

    def per_sample(self, step: Step) -> Tensor:
        """The loss of each prediction."""
        q = step.probabilities.clamp(max=self.clip)
        return -(q * (q / (1 - q) + 1e-5).log()).sum(dim=1)
