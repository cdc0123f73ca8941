"""SoTTA's bank: balanced over classes, confident images only."""

import math

import torch
from torch import Tensor

from driftproof.augment import Augment
from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.memories.image_bank import Candidates, ImageBank, mean_over_pixels
from driftproof.memories.insertion import insert_one_by_one
from driftproof.predictions import log_probabilities

__all__ = ["HUS"]


class HUS(ImageBank):
    """High-confidence uniform-class sampling (SoTTA).

    An image enters if its largest probability reaches the threshold. Once the bank is full, it takes the place of a
    random image of its own class, if no class has more images, and else of a random image of a largest class. Nothing
    leaves by age: images of a past shift stay until others take their place.

    Args:
        capacity: See `ImageBank`.
        confidence: C₀, the threshold; None is 0.99 for 10 classes, 0.66 for 100, 0.33 for 1,000, and between them
            1.32 − 0.33 log₁₀ C.
        update_every: See `ImageBank`.
        augment: See `Memory`.
    """

    def __init__(
        self,
        capacity: int = 64,
        *,
        confidence: float | None = None,
        update_every: int = 64,
        augment: Augment | None = None,
    ) -> None:
        super().__init__(capacity, update_every=update_every, augment=augment)
        if confidence is not None and not 0.0 <= confidence <= 1.0:
            raise ConfigurationError(f"Expected `confidence` to be None or in 0..1, but got {confidence}.")
        self.confidence = confidence

    def admit(self, step: Step) -> Tensor:
        """The confident images."""
        threshold = self.confidence
        if threshold is None:
            threshold = min(max(1.32 - 0.33 * math.log10(step.classes), 0.0), 0.99)
        return mean_over_pixels(log_probabilities(step.output).amax(dim=1).exp()) >= threshold

    def choose(self, candidates: Candidates, step: Step) -> Tensor:
        """Insert the images of the batch one after the other."""
        same = candidates.same_class
        draws = torch.rand(len(candidates.admitted), len(same), generator=step.generator, device=same.device)
        return insert_one_by_one(candidates.present, draws, capacity=self.capacity, same_class=same)
