"""What the losses have in common."""

from torch import Tensor

from driftproof.components import Component, Step

__all__ = ["Loss"]


class Loss(Component):
    """A loss per sample; the adapter weighs and averages it.

    Examples:
        The barest new loss.

        >>> class Confidence(Loss):
        ...     def per_sample(self, step):
        ...         return -step.log_probabilities.amax(dim=1)
    """

    def predict(self, step: Step) -> Tensor:
        """What the adapter answers with, `step.answer`: the logits of the pass, unless a teacher knows better."""
        return step.logits

    def per_sample(self, step: Step) -> Tensor:
        """The loss of each sample, (N,) or (N, H, W)."""
        raise NotImplementedError
