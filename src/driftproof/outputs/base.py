"""Outputs that combine the predictions of one step."""

from collections.abc import Callable

import torch
from torch import Tensor

from driftproof.components import Component, Step
from driftproof.network import Network
from driftproof.predictions import log_probabilities

__all__ = ["AfterUpdate", "BeforeUpdate", "Ensemble", "Output", "Teacher"]


class Output(Component):
    """Computes the returned logits or log-probabilities, (N, C) or (N, C, H, W).

    Examples:
        The smallest new output: the adapting and the frozen network's logits, averaged.

        >>> class Averaged(Output):
        ...     def predict(self, step):
        ...         return (step.logits + step.source_logits) / 2
    """

    def predict(self, step: Step) -> Tensor:
        """What the adapter returns; called before the update, without gradients."""
        return step.logits

    def source_view(self) -> Callable[[Network, Tensor, Tensor], Tensor] | None:
        """What runs the frozen network on another view of a batch, for `predict`; None where it needs none.

        It gets the network, the images and the network's logits of them. A captured step runs it early, beside a
        detector, and `step.source_view` is its result.
        """
        return None

    def predict_after(self, step: Step) -> Tensor | None:
        """What the adapter returns instead, predicted again after the update; None keeps the first prediction."""
        return None


class BeforeUpdate(Output):
    """The prediction from before the update: one forward pass serves the answer and the step."""


class AfterUpdate(Output):
    """A second prediction, after the update."""

    def predict_after(self, step: Step) -> Tensor:
        """The updated network's logits."""
        return step.network(step.images)


class Teacher(Output):
    """The teacher's prediction; needs `teacher=`."""

    def predict(self, step: Step) -> Tensor:
        """The teacher's logits."""
        return step.teacher_logits


class Ensemble(Output):
    """The mean of the adapting and the frozen network's log-probabilities.

    Args:
        source_weight: The weight of the frozen network, in [0, 1].
    """

    def __init__(self, source_weight: float = 0.5) -> None:
        super().__init__()
        self.source_weight = source_weight

    def predict(self, step: Step) -> Tensor:
        """The weighted mean of log-probabilities."""
        return torch.lerp(step.log_probabilities, log_probabilities(step.source_logits), self.source_weight)
