"""The mean prediction over random views."""

import math

import torch
from torch import Tensor

from driftproof.augment import Augment, check_keeps_pixels, strong_view
from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.outputs.base import Output
from driftproof.predictions import log_probabilities

__all__ = ["MeanProbability"]


class MeanProbability(Output):
    """The log of the mean probabilities over the batch and random views of it; each view costs a pass.

    Args:
        views: How many views besides the batch itself.
        augment: How each is made.
    """

    def __init__(self, views: int = 15, augment: Augment = strong_view) -> None:
        super().__init__()
        if views < 0:
            raise ConfigurationError(f"Expected `views` to be at least 0, but got {views}.")
        self.views = views
        self.augment = augment

    def predict(self, step: Step) -> Tensor:
        """The averaged prediction as log-probabilities."""
        check_keeps_pixels(self.augment, step.logits)
        predictions = [step.log_probabilities]
        for _ in range(self.views):
            predictions.append(log_probabilities(step.network(step.augment(self.augment))))
        return torch.stack(predictions).logsumexp(dim=0) - math.log(len(predictions))
