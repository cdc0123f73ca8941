"""Outputs over several views of a batch, and after an update that is then forgotten."""

from collections.abc import Callable

import torch
from torch import Tensor

from driftproof.augment import Augment, crop_and_flip
from driftproof.components import Step
from driftproof.errors import ConfigurationError, ModelError
from driftproof.outputs.base import AfterUpdate, Output

__all__ = ["AveragedViews", "Episodic", "Predict", "average_views"]

Predict = Callable[[Tensor], Tensor]


class AveragedViews(Output):
    """The mean of the logits over random views of every image; each view costs a pass.

    Args:
        count: How many views.
        augment: How each is made.
    """

    def __init__(self, count: int = 32, augment: Augment = crop_and_flip) -> None:
        super().__init__()
        if count < 1:
            raise ConfigurationError(f"Expected `count` to be at least 1, but got {count}.")
        self.count = count
        self.augment = augment

    def predict(self, step: Step) -> Tensor:
        """The averaged logits."""
        if step.logits.ndim > 2:
            raise ModelError(
                f"Expected logits of shape (N, C), but got {tuple(step.logits.shape)}: views that move pixels cannot "
                "be averaged pixel by pixel."
            )
        return average_views(step.network, step, self.augment, self.count)


class Episodic(AfterUpdate):
    """The prediction after the update, which is then forgotten: every batch starts from the source.

    Choose an optimizer without state, such as plain SGD: that of others is not reset.
    """

    def predict_after(self, step: Step) -> Tensor:
        """The updated network's logits; the parameters then return to the source."""
        logits = super().predict_after(step)
        torch._foreach_copy_(list(step.parameters), list(step.source_parameters))
        return logits


def average_views(predict: Predict, step: Step, augment: Augment, count: int) -> Tensor:
    """The mean of a network's logits over random views of the batch."""
    total = predict(step.augment(augment))
    for _ in range(count - 1):
        total = total + predict(step.augment(augment))
    return total / count
