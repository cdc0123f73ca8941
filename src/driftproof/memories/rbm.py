"""STAMP's bank: certain images on which the frozen network agrees, balanced over classes."""

import math

import torch
from torch import Tensor, nn

from driftproof.augment import Augment
from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.memories.image_bank import Candidates, ImageBank, mean_class, mean_over_pixels
from driftproof.memories.insertion import insert_one_by_one
from driftproof.network import Network
from driftproof.predictions import entropy, log_probabilities

__all__ = ["RBM"]

_REFRESH = 0.1


class RBM(ImageBank):
    """The reliable class-balanced memory of STAMP.

    An image enters under the adapting network's class if the frozen network predicts the same one, and the entropy of
    what the adapter returns is below α ln C. Once the bank is full, the oldest image leaves of the class with the
    largest running count, ξ ← 0.9 ξ + 0.1 n for n images after each batch; ties are broken at random.

    Args:
        capacity: See `ImageBank`.
        entropy_share: α; None is 0.25 for up to 31 classes, 0.9 for up to 316, and 0.8 for more, as the authors have it
            for 10, 100 and 1,000.
        consistent: Whether the frozen network must agree; None is up to 999 classes.
        update_every: See `ImageBank`; a step after every batch unless told otherwise.
        augment: See `Memory`.
    """

    running_counts: Tensor | None

    def __init__(
        self,
        capacity: int = 64,
        *,
        entropy_share: float | None = None,
        consistent: bool | None = None,
        update_every: int = 1,
        augment: Augment | None = None,
    ) -> None:
        super().__init__(capacity, update_every=update_every, augment=augment)
        if entropy_share is not None and not entropy_share >= 0.0:
            raise ConfigurationError(f"Expected `entropy_share` to be None or at least 0, but got {entropy_share}.")
        self.entropy_share = entropy_share
        self.consistent = consistent
        self.register_buffer("running_counts", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget all images and counts."""
        super().reset_state(network, parameters)
        self.running_counts = None

    def classify(self, step: Step) -> Tensor:
        """The adapting network's class."""
        return mean_class(step.logits)

    def admit(self, step: Step) -> Tensor:
        """The certain images on which the networks agree."""
        share = self.entropy_share
        if share is None:
            share = 0.25 if step.classes < 32 else 0.9 if step.classes < 317 else 0.8
        entropies = mean_over_pixels(entropy(log_probabilities(step.output)))
        admitted = entropies < share * math.log(step.classes)
        consistent = step.classes < 1000 if self.consistent is None else self.consistent
        return admitted & (self.classify(step) == mean_class(step.source_logits)) if consistent else admitted

    def choose(self, candidates: Candidates, step: Step) -> Tensor:
        """Insert the images of the batch one after the other."""
        count, size, device = len(candidates.admitted), len(candidates.classes), candidates.held.device
        expected = self.running_counts
        if expected is None:
            expected = torch.zeros(step.classes, device=device)
        # Who leaves first: by the rank of the class, with ties in a random order for every image, then by age.
        order = torch.rand(count, step.classes, generator=step.generator, device=device).argsort(dim=1)
        order = order.gather(1, expected[order].argsort(dim=1, stable=True))
        leaving = order.argsort(dim=1)[:, candidates.classes] * size + torch.arange(size, 0, -1, device=device)
        held = insert_one_by_one(candidates.present, leaving, capacity=self.capacity)
        counts = torch.zeros_like(expected).scatter_add(0, candidates.classes, held.to(expected.dtype))
        self.running_counts = torch.lerp(expected, counts, _REFRESH)
        return held
