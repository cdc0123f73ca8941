"""Agreement with what the adapter returns, such as a teacher's prediction."""

from torch import Tensor

from driftproof.components import Step
from driftproof.losses.base import Loss
from driftproof.predictions import log_probabilities

__all__ = ["Consistency"]


class Consistency(Loss):
    """Cross-entropy with `step.output` as the target, which a teacher should give (CoTTA).

    Classification: the targets are soft. Segmentation (rank-4 logits): they are hard labels.

    Args:
        symmetric: ½[CE(z* → z) + CE(z → z*)], as CoTTA trains on ImageNet.
    """

    def __init__(self, *, symmetric: bool = False) -> None:
        super().__init__()
        self.symmetric = symmetric

    def per_sample(self, step: Step) -> Tensor:
        """Cross-entropy with the output: soft for images, its label for pixels."""
        if step.logits.ndim > 2:
            labels = step.output.argmax(dim=1, keepdim=True)
            return -step.log_probabilities.gather(1, labels).squeeze(1)
        target = log_probabilities(step.output)
        student_ce = -(target.exp() * step.log_probabilities).sum(dim=1)
        if not self.symmetric:
            return student_ce
        teacher_ce = -(step.log_probabilities.exp() * target).sum(dim=1)
        return 0.5 * (student_ce + teacher_ce)
