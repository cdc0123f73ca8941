"""RoTTA's bank: balanced over classes, young and certain images."""

import math

import torch
from torch import Tensor

from driftproof.augment import Augment
from driftproof.components import Step
from driftproof.memories.base import expand_to_samples
from driftproof.memories.image_bank import Candidates, ImageBank
from driftproof.memories.insertion import insert_one_by_one

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
        first = len(candidates.classes) - len(candidates.admitted)
        age = (candidates.arrived[first:].unsqueeze(1) - candidates.arrived).to(candidates.entropies.dtype)
        scores = torch.sigmoid(age / self.capacity) + candidates.entropies / math.log(step.classes)
        return insert_one_by_one(
            candidates.present,
            scores,
            capacity=self.capacity,
            same_class=candidates.same_class,
            quota=math.ceil(self.capacity / step.classes),
        )

    def weights(self, step: Step) -> Tensor:
        """The timeliness of each image, if a step is due; else zero."""
        age = (self.num_images - self.arrived).to(step.weights.dtype)
        return super().weights(step) * expand_to_samples(torch.sigmoid(-age / self.capacity), step)
