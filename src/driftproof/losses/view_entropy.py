"""Entropy of the mean prediction over views of an image."""

import math

import torch
from torch import Tensor

from driftproof.augment import Augment, crop_and_flip
from driftproof.components import Step
from driftproof.errors import ConfigurationError, ModelError
from driftproof.losses.base import Loss
from driftproof.predictions import entropy, log_probabilities

__all__ = ["ViewEntropy"]


class ViewEntropy(Loss):
    """H of the mean prediction over random views of each image (MEMO); all views are one pass.

    Args:
        views: How many views of an image.
        augment: How each is made.
    """

    def __init__(self, views: int = 32, augment: Augment = crop_and_flip) -> None:
        super().__init__()
        if views < 1:
            raise ConfigurationError(f"Expected `views` to be at least 1, but got {views}.")
        self.views = views
        self.augment = augment

    def per_sample(self, step: Step) -> Tensor:
        """The entropy of each image's mean prediction, in log space."""
        if step.logits.ndim > 2:
            raise ModelError(
                f"Expected logits of shape (N, C), but got {tuple(step.logits.shape)}: views that move pixels cannot "
                "be averaged pixel by pixel."
            )
        views = torch.cat([step.augment(self.augment) for _ in range(self.views)])
        log_p = log_probabilities(step.network(views)).view(self.views, len(step.images), step.classes)
        return entropy(log_p.logsumexp(dim=0) - math.log(self.views))
