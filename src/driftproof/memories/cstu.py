"""RoTTA's bank: balanced over classes, young and certain images."""

import math

import torch
from torch import Tensor

from driftproof.augment import Augment
from driftproof.components import Step
from driftproof.memories.base import expand_to_samples
from driftproof.memories.image_bank import Candidates, ImageBank

__all__ = ["CSTU"]


class CSTU(ImageBank):
    """Category-balanced sampling with timeliness and uncertainty (RoTTA).

    An image of age a and entropy u has the score 1 / (1 + exp(−a / capacity)) + u / ln C; ages count images. A class
    with `capacity` / C images or more is full, so that a quota below one means one image. An image of a full class
    competes with those of its class; an image of another class, once the bank is full, with those of the largest
    classes. It takes the place of the one with the largest score, unless its own is as large. In the loss an image
    weighs exp(−a / capacity) / (1 + exp(−a / capacity)).

    Args:
        capacity: See `ImageBank`.
        update_every: See `ImageBank`.
        augment: See `Memory`.
    """

    def __init__(self, capacity: int = 64, *, update_every: int = 64, augment: Augment | None = None) -> None:
        super().__init__(capacity, update_every=update_every, augment=augment)

    def choose(self, candidates: Candidates, step: Step) -> Tensor:
        """Insert the images of the batch one after the other."""
        count, dtype = len(candidates.admitted), candidates.entropies.dtype
        first, quota = len(candidates.classes) - count, self.capacity / step.classes
        age = candidates.arrived[first:].unsqueeze(1) - candidates.arrived
        scores = torch.sigmoid(age.to(dtype) / self.capacity) + candidates.entropies / math.log(step.classes)
        same = candidates.same_class
        # Scores are at least ½, so that 0 and −1 never win; an image always competes with itself.
        itself = torch.eye(len(same), dtype=torch.bool, device=same.device)[first:]
        else_lost = torch.where(itself, scores, -1.0)
        counting = torch.cat([same.to(dtype), same.new_ones(1, len(same), dtype=dtype)])  # by class, and all
        held = candidates.held.to(dtype)
        for number in range(count):
            new = first + number
            counts = counting @ held
            of_class = counts[:-1] * held
            has_place = counts[new] < quota
            rivals = torch.where(has_place, of_class == of_class.amax(), same[new])
            held[new].fill_(1.0)
            victim = (torch.where(rivals, scores[number], else_lost[number]) * held).argmax(dim=0, keepdim=True)
            held.scatter_(0, victim, (has_place & (counts[-1] < self.capacity)).to(dtype).view(1))
        return held > 0

    def weights(self, step: Step) -> Tensor:
        """The timeliness of each image, if a step is due; else zero."""
        age = (self.num_images - self.arrived).to(step.weights.dtype)
        return super().weights(step) * expand_to_samples(torch.sigmoid(-age / self.capacity), step)
