"""The base class of losses."""

from torch import Tensor

from driftproof.components import Component, Step

__all__ = ["Loss"]


class Loss(Component):
    """A loss per sample; the adapter weights and averages it.

    Examples:
        The smallest new loss.

        >>> class Confidence(Loss):
        ...     def per_sample(self, step):
        ...         return -step.log_probabilities.amax(dim=1)
    """

    def per_sample(self, step: Step) -> Tensor:
        """The loss of each sample, (N,) or (N, H, W)."""
        raise NotImplementedError
