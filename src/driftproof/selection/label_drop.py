"""Selection of samples whose label depends on the shape of what they show (DeYO)."""

import torch
from torch import Tensor

from driftproof.augment import Augment, check_keeps_pixels, shuffle_patches
from driftproof.components import Step
from driftproof.predictions import entropy, gather_probability, log_probabilities
from driftproof.selection.base import Selection
from driftproof.selection.entropy import entropy_limit

__all__ = ["LabelProbabilityDrop"]


class LabelProbabilityDrop(Selection):
    """Learn from certain samples whose label loses probability once their patches are shuffled.

    Samples count if H(ŷ) < E_max and d > τ, with d = ŷ^c − ŷ'^c, c the predicted class and ŷ' the prediction of the
    view that destroys the object. They weigh exp(E0 − H) + exp(d). The view is normalized with statistics of the
    samples with H(ŷ) < E_max alone, as if only those had been passed on.

    Args:
        drop: τ, which d must exceed.
        entropy_threshold: E_max in nats; None is 0.5 ln C.
        weight_threshold: E0 in nats; None is 0.4 ln C.
        augment: Makes the view; `augment.shuffle_patches` cuts an image into 4 × 4 patches. With rank-4 logits the
            view must not move pixels.

    Reference:
        Lee et al., "Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors",
        ICLR 2024.
    """

    def __init__(
        self,
        drop: float = 0.2,
        entropy_threshold: float | None = None,
        weight_threshold: float | None = None,
        augment: Augment = shuffle_patches,
    ) -> None:
        super().__init__()
        self.drop = drop
        self.entropy_threshold = entropy_threshold
        self.weight_threshold = weight_threshold
        self.augment = augment

    @torch.no_grad()
    def weights(self, step: Step) -> Tensor:
        """The weight of each sample; zero for the uncertain ones and for those that shuffling leaves as they are."""
        check_keeps_pixels(self.augment, step.logits)
        log_p = step.log_probabilities.detach()
        uncertainty, classes = entropy(log_p), log_p.argmax(dim=1)
        certain = (uncertainty < entropy_limit(self.entropy_threshold, log_p, 0.5)).to(step.weights.dtype)
        view = log_probabilities(step.predict_view(step.augment(self.augment), certain))
        drop = gather_probability(log_p, classes) - gather_probability(view, classes)
        weights = torch.exp(entropy_limit(self.weight_threshold, log_p) - uncertainty) + drop.exp()
        return weights * certain * (drop > self.drop)
