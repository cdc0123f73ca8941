"""Selections by the confidence of predictions."""

import math
from typing import SupportsFloat

from torch import Tensor

from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.predictions import log_probabilities
from driftproof.selection.base import Selection
from driftproof.selection.which_network import WhichNetwork, check_network

__all__ = ["ConfidenceAbove", "ConfidenceDifference"]


class ConfidenceDifference(Selection):
    """The wisdom of crowds: learn from samples whose confidence did not fall.

    Φ = 1(ŷ^{c_o} − ỹ^{c_o} ≥ margin), with c_o the class that the original model θ_o predicts. A wrong or unknown
    sample goes against what the many right ones teach, so its confidence in that class falls while theirs rises.
    Exact ≥ at full precision: at the first batch θ_a = θ_o and everything is selected.

    Open choice taken: θ_o normalizes the way θ_a does (`source_statistics=` of the adapter changes that).

    Args:
        margin: 0 for classification; the paper relaxes it to −0.2 for segmentation.
        on: "softmax" compares probabilities; "logits" is the paper's ablation.

    Reference:
        Lee et al., "Towards Open-Set Test-Time Adaptation Utilizing the Wisdom of Crowds in Entropy Minimization",
        ICCV 2023.
    """

    mean_entropy = 0.5

    def __init__(self, margin: float = 0.0, on: str = "softmax") -> None:
        super().__init__()
        if on not in ("softmax", "logits"):
            raise ConfigurationError(f'Expected `on` to be "softmax" or "logits", but got {on!r}.')
        if not isinstance(margin, SupportsFloat) or not math.isfinite(margin):
            raise ConfigurationError(f"Expected `margin` to be a number, but got {margin!r}.")
        self.margin = margin
        self.on = on

    def weights(self, step: Step) -> Tensor:
        """One where the confidence did not fall by more than the margin allows."""
        gain = step.confidence_change if self.on == "softmax" else step.logit_change
        return (gain >= self.margin).to(gain.dtype)


class ConfidenceAbove(Selection):
    """Learn from samples with max_k ŷ^k ≥ threshold.

    Args:
        threshold: The lowest confidence.
        network: Whose prediction to read, the "adapting" or the "source" network's.
    """

    def __init__(self, threshold: float = 0.9, network: WhichNetwork = "adapting") -> None:
        super().__init__()
        if not 0.0 <= threshold <= 1.0:
            raise ConfigurationError(f"Expected `threshold` to be in 0..1, but got {threshold}.")
        check_network(network)
        self.threshold = threshold
        self.network = network

    def weights(self, step: Step) -> Tensor:
        """One where the prediction is confident enough."""
        from_source = self.network == "source"
        log_p = log_probabilities(step.source_logits) if from_source else step.log_probabilities.detach()
        return (log_p.amax(dim=1).exp() >= self.threshold).to(step.weights.dtype)
