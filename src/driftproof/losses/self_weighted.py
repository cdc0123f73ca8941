"""Entropy in which certain samples count for more."""

import torch
from torch import Tensor

from driftproof.components import Step
from driftproof.losses.base import Loss
from driftproof.predictions import entropy

__all__ = ["SelfWeightedEntropy"]


class SelfWeightedEntropy(Loss):
    """n s_i H_i with s = softmax(−H) over the n samples, whose mean is Σ_i s_i H_i (STAMP).

    Gradients flow through the weights as well, so that a sample whose entropy is more than one nat above the weighted
    mean is pushed to a larger entropy. Samples of weight zero do not count.
    """

    def per_sample(self, step: Step) -> Tensor:
        """The weighted entropy of each sample."""
        entropies = entropy(step.log_probabilities, step.probabilities)
        counts = (step.weights > 0).to(entropies.dtype)
        certainty = torch.exp(-entropies) * counts
        total, number = step.distributed.sum(certainty.sum(), counts.sum())
        return number * certainty / total.clamp(min=torch.finfo(entropies.dtype).tiny) * entropies
