"""A classifier of class templates that the stream adjusts (T3A)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftproof.components import Step
from driftproof.errors import ConfigurationError, ModelError
from driftproof.network import Network
from driftproof.outputs.base import Output
from driftproof.predictions import entropy, log_probabilities, upcast

__all__ = ["AdjustedTemplates"]


class AdjustedTemplates(Output):
    """Features times class templates, each the mean of the most certain features of its class (T3A).

    A class holds its `capacity` normalized features of lowest entropy, for good. At the start these are the
    classifier's rows, each with the class and the entropy that the classifier gives it. The batch is taken in before it
    is answered. The bias is dropped. A class without features has a template of zeros.

    Args:
        capacity: K, features to hold per class; None is 100 below 100 classes, else 20. The memory is (C, K, D).
    """

    needs_features = True
    supports: Tensor | None
    entropies: Tensor | None

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__()
        if capacity is not None and capacity < 1:
            raise ConfigurationError(f"Expected `capacity` to be at least 1, but got {capacity}.")
        self.capacity = capacity
        self.register_buffer("supports", None)
        self.register_buffer("entropies", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Start from the rows of a linear classifier."""
        name, layer = network.find_classifier()
        if not isinstance(layer, nn.Linear):
            raise ModelError(f"Expected a linear classifier, but layer `{name}` is a {type(layer).__name__}.")
        with torch.no_grad():
            rows = upcast(layer.weight.detach())
            classes, features = rows.shape
            capacity = self.capacity or (100 if classes < 100 else 20)
            self.supports = rows.new_zeros(classes, capacity, features)
            self.entropies = rows.new_full((classes, capacity), torch.inf)
            self._insert(rows, F.linear(rows, rows, None if layer.bias is None else upcast(layer.bias.detach())))

    def predict(self, step: Step) -> Tensor:
        """Take in the batch of all ranks, and multiply the features of this one with the templates."""
        assert self.supports is not None  # reset_state() comes first
        if step.logits.ndim > 2 or step.classes != len(self.supports):
            raise ModelError(
                f"Expected logits of shape (N, {len(self.supports)}), one for each row of the classifier, but got "
                f"{tuple(step.logits.shape)}. Name the right `classifier`; T3A is not for pixels."
            )
        features, classes, ranks = upcast(step.features.detach()), step.classes, step.distributed
        rows = torch.cat([features, upcast(step.logits.detach())], dim=1)
        return ranks.map_global_batch(rows, lambda batch: self._classify(ranks.sum(batch)[0], classes))

    def _classify(self, rows: Tensor, classes: int) -> Tensor:
        features = rows[:, :-classes]
        supports = self._insert(features, rows[:, -classes:])
        return features @ F.normalize(supports.sum(dim=1), dim=1).T

    def _insert(self, features: Tensor, logits: Tensor) -> Tensor:
        """Keep the features of lowest entropy of each class, among those held and new ones."""
        assert self.supports is not None  # reset_state() comes first
        assert self.entropies is not None
        classes, capacity, _ = self.supports.shape
        own_class = logits.argmax(dim=1) == torch.arange(classes, device=logits.device).unsqueeze(1)
        new = entropy(log_probabilities(logits)).where(own_class, torch.inf)
        kept, places = torch.cat([self.entropies, new], dim=1).topk(capacity, largest=False)
        # Those held stand first in one table of all features, class by class; the new ones follow.
        first = torch.arange(classes, device=places.device).unsqueeze(1) * capacity
        index = torch.where(places < capacity, first + places, (classes - 1) * capacity + places)
        table = torch.cat([self.supports.flatten(end_dim=1), F.normalize(features, dim=1)])
        supports = table[index] * kept.isfinite().unsqueeze(2)
        self.supports, self.entropies = supports, kept
        return supports
