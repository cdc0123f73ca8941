"""Agreement of the predictions of an image and of a random view of it."""

from torch import Tensor

from driftproof.augment import Augment, check_keeps_pixels, geometric_jitter
from driftproof.components import Step
from driftproof.losses.base import Loss
from driftproof.predictions import log_probabilities

__all__ = ["ViewConsistency"]


class ViewConsistency(Loss):
    """½[CE(ŷ → ŷ') + CE(ŷ' → ŷ)] with ŷ' the prediction of a random view; gradients flow through both (ROID).

    The view is normalized with statistics of the selected images alone, as if only those had been passed on. With
    rank-4 logits the view must not move pixels: pass `augment=photometric`.

    Args:
        augment: Makes the view.
    """

    def __init__(self, augment: Augment = geometric_jitter) -> None:
        super().__init__()
        self.augment = augment

    def per_sample(self, step: Step) -> Tensor:
        """The symmetric cross-entropy of each pair."""
        check_keeps_pixels(self.augment, step.logits)
        log_p = log_probabilities(step.predict_view(step.augment(self.augment), step.weights))
        return -0.5 * (step.probabilities * log_p + log_p.exp() * step.log_probabilities).sum(dim=1)
