"""The sum of three networks' logits, weighted by their confidence (PAF-KIP)."""

import torch
from torch import Tensor

from driftproof.components import Step
from driftproof.outputs.base import Output
from driftproof.predictions import log_probabilities

__all__ = ["ConfidenceEnsemble"]


class ConfidenceEnsemble(Output):
    """Σ_m (1/3 + weight·(q_m − q̄)) z_m over the adapting network, the teacher and the frozen network.

    q is the largest probability of a network, q̄ the mean of the three. Needs `teacher=`.

    Args:
        weight: How much more a network counts that is surer than the others; 0 is the mean of the logits.
    """

    def __init__(self, weight: float = 0.1) -> None:
        super().__init__()
        self.weight = weight

    def predict(self, step: Step) -> Tensor:
        """The weighted logits."""
        logits = torch.stack([step.logits, step.teacher_logits, step.source_logits])
        sure = torch.stack([log_probabilities(one).amax(dim=1, keepdim=True).exp() for one in logits])
        return ((1 / 3 + self.weight * (sure - sure.mean(dim=0))) * logits).sum(dim=0)
