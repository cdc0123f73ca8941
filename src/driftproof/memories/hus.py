"""SoTTA's bank: balanced over classes, confident images only."""

import math

import torch
from torch import Tensor

from driftproof.augment import Augment
from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.memories.image_bank import Candidates, ImageBank, mean_over_pixels
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
        count, same, held = len(candidates.admitted), candidates.same_class, candidates.held.float()
        first, admitted = len(same) - count, candidates.admitted.float()
        draws = torch.rand(count, len(same), generator=step.generator, device=same.device) + 0.5
        counting = torch.cat([same.float(), torch.ones_like(same[:1], dtype=torch.float32)])  # by class, and all
        for number in range(count):
            new = first + number
            counts = counting @ held
            of_class = counts[:-1] * held
            largest = of_class.amax()
            rivals = torch.where(counts[new] == largest, same[new], of_class == largest)
            # Zero for what is not in the bank or not a rival: the smallest draw is ½.
            victim = (rivals * held * draws[number]).argmax(dim=0, keepdim=True)
            evicted = (counts[-1:] >= self.capacity) * admitted[number]
            held.scatter_add_(0, victim, -evicted)
            held[new] = admitted[number]
        return held > 0
