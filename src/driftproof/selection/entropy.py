"""Selections by the entropy of predictions."""

import math

import torch
from torch import Tensor

from driftproof.components import Step
from driftproof.predictions import entropy, log_probabilities
from driftproof.selection.base import Selection
from driftproof.selection.which_network import WhichNetwork, check_network

__all__ = ["EntropyBelow", "EntropyWeight", "entropy_limit"]


class EntropyBelow(Selection):
    """Learn from samples with H(ŷ) < E0.

    Args:
        threshold: E0 in nats; None means 0.4 ln C.
        network: Whose prediction to read, the "adapting" or the "source" network's.
    """

    def __init__(self, threshold: float | None = None, network: WhichNetwork = "adapting") -> None:
        super().__init__()
        check_network(network)
        self.threshold = threshold
        self.network = network

    def weights(self, step: Step) -> Tensor:
        """One where the prediction is certain enough."""
        if self.network == "source":
            log_p = log_probabilities(step.source_logits)
            return (entropy(log_p) < entropy_limit(self.threshold, log_p)).to(step.weights.dtype)
        return (step.entropies.detach() < entropy_limit(self.threshold, step.logits)).to(step.weights.dtype)


class EntropyWeight(Selection):
    """Weight samples by exp(E0 − H(ŷ)): the more certain, the more.

    Args:
        threshold: E0 in nats; None means 0.4 ln C.
    """

    def __init__(self, threshold: float | None = None) -> None:
        super().__init__()
        self.threshold = threshold

    def weights(self, step: Step) -> Tensor:
        """Larger where the prediction is more certain."""
        return torch.exp(entropy_limit(self.threshold, step.logits) - step.entropies.detach())


def entropy_limit(threshold: float | None, logits: Tensor, share: float = 0.4) -> float:
    """A threshold in nats; None is a share of ln C."""
    return share * math.log(logits.shape[1]) if threshold is None else threshold
