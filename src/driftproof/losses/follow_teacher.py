"""Agreement with the teacher's prediction of the same images."""

from torch import Tensor

from driftproof.components import Step
from driftproof.losses.base import Loss
from driftproof.predictions import log_probabilities

__all__ = ["FollowTeacher"]


class FollowTeacher(Loss):
    """Cross-entropy −Σ_k t^k ln ŷ^k with the teacher's prediction t of `step.images`; needs `teacher=`.

    Where a memory augments what the adapting network sees, the teacher sees the plain images (RoTTA).
    """

    def per_sample(self, step: Step) -> Tensor:
        """The cross-entropy of each sample."""
        target = log_probabilities(step.teacher_logits).exp()
        return -(target * step.log_probabilities).sum(dim=1)
