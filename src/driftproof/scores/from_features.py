"""Scores of the feature vector that enters a linear classifier."""

import math

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from driftproof.components import Component, Step
from driftproof.distributed import Distributed
from driftproof.errors import ModelError
from driftproof.network import Network
from driftproof.predictions import upcast
from driftproof.scores.base import NoveltyScore, Of, check_of, is_adapted
from driftproof.scores.functions import COSINE_SCALE, cosines, one_minus_largest, scaled_entropy

__all__ = [
    "CenteredCosineEntropy",
    "Cosine",
    "CosineEntropy",
    "FeatureCenter",
    "centered_cosine_entropy",
    "classifier_directions",
]

_MOST_PER_CLASS, _MOST = 50.0, 5000.0
"""Images that a center remembers, of each class and of all."""

_DOUBT = 0.04
"""As a share of what is remembered of a class, how many images count as zero besides those that were seen."""


class Cosine(NoveltyScore):
    """One minus the largest cosine between the feature vector and a row of the classifier.

    The classifier is the last linear layer, or the one that `classifier=` names. Pixels have no feature vector.

    Args:
        of: The frozen network θ_o, or the adapted one θ_a.
    """

    bounds = (0.0, 2.0)
    needs_features = True  # a method that learns nothing has one network, the adapting one
    _function = staticmethod(one_minus_largest)

    def __init__(self, *, of: Of = "frozen") -> None:
        super().__init__()
        self.of = check_of(of)

    @property
    def needs_source_features(self) -> bool:  # type: ignore[override]  # a class attribute for other components
        """Whether the score is the frozen network's."""
        return self.of == "frozen"

    def forward(self, step: Step) -> Tensor:
        """Return the score of each sample."""
        adapted = is_adapted(self.of, step)
        features = step.features if adapted else step.source_features
        directions = classifier_directions(step.network if adapted else step.source, features)
        return self._function(cosines(features, directions))


class CosineEntropy(Cosine):
    """The entropy of softmax(7 cos), of the cosines between the feature vector and the classifier's rows.

    Args:
        of: The frozen network θ_o, or the adapted one θ_a.
    """

    bounds = (0.0, math.inf)
    _function = staticmethod(scaled_entropy)


class CenteredCosineEntropy(NoveltyScore):
    """The entropy of softmax(7 cos), less what the stream's cosines have in common.

    A shift moves all features of a network that normalizes with training's statistics the same way, so that some
    classes gain on others whatever is in the image. The cosines are those of the feature vectors, made to have length
    1, less their mean over the stream (`FeatureCenter`). The network is the frozen one.
    """

    bounds = (0.0, math.inf)
    needs_features = True  # as for `Cosine`
    needs_source_features = True

    def __init__(self) -> None:
        super().__init__()
        self.center = FeatureCenter()

    def forward(self, step: Step) -> Tensor:
        """Return the score of each image."""
        adapted = is_adapted("frozen", step)
        features = step.features if adapted else step.source_features
        directions = classifier_directions(step.network if adapted else step.source, features)
        center = self.center.include(features, directions, step.distributed)
        return centered_cosine_entropy(features, center, directions)

    def on_batch(self, step: Step) -> None:
        """Remember the batch."""
        self.center.on_batch(step)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget the stream."""
        self.center.reset_state(network, parameters)


class FeatureCenter(Component):
    """The mean of a stream's feature vectors, each of length 1, if all classes were equally frequent.

    It is the mean of the classes' means, so that the order of the classes hardly moves it. An image counts for every
    class, by softmax(7 cos) of its centered cosines. Old images fade, and classes that were not seen count as zero.
    """

    sums: Tensor | None
    counts: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self._included: tuple[Tensor, Tensor] | None = None
        self.register_buffer("sums", None)
        self.register_buffer("counts", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget the stream."""
        self.sums = self.counts = self._included = None

    def include(self, features: Tensor, directions: Tensor, distributed: Distributed) -> Tensor:
        """Return the center with a batch included, which `on_batch` then remembers.

        Args:
            features: The classifier's input, (N, D).
            directions: The classifier's rows of length 1, (C, D).
            distributed: The ranks that share the batch.
        """
        units = _to_length_1(features)
        classes = len(directions)
        sums = units.new_zeros(directions.shape) if self.sums is None else self.sums
        counts = units.new_zeros(classes) if self.counts is None else self.counts
        center = self._mean(sums, counts)
        shares = (COSINE_SCALE * (units - center) @ directions.T).softmax(dim=1)
        new_sums, new_counts = distributed.sum(shares.T @ units, shares.sum(dim=0))
        sums, counts = sums + new_sums, counts + new_counts
        fading = (self._limit(classes) / counts.clamp(min=1e-6)).clamp(max=1.0)
        self._included = sums * fading.unsqueeze(1), counts * fading
        return self._mean(*self._included)

    def on_batch(self, step: Step) -> None:
        """Remember the batch that was included last."""
        if self._included is not None:
            (self.sums, self.counts), self._included = self._included, None

    def settle(self, condition: Tensor | None) -> None:
        """Remember the batch that was included last if a 0-d condition holds; between two steps. None forgets it.

        What is remembered is written in place, so that captured steps stay valid.
        """
        included, self._included = self._included, None
        if condition is None or included is None:
            return
        sums, counts = included
        if self.sums is None or self.counts is None:
            self.sums, self.counts = torch.zeros_like(sums), torch.zeros_like(counts)
        condition = condition & sums.isfinite().all()
        self.sums.copy_(sums.where(condition, self.sums))
        self.counts.copy_(counts.where(condition, self.counts))

    @staticmethod
    def _limit(classes: int) -> float:
        return min(_MOST_PER_CLASS, _MOST / classes)

    def _mean(self, sums: Tensor, counts: Tensor) -> Tensor:
        return (sums / (counts + _DOUBT * self._limit(len(counts))).unsqueeze(1)).mean(dim=0)


def centered_cosine_entropy(features: Tensor, center: Tensor, directions: Tensor) -> Tensor:
    """Return the entropy of softmax(7 cos) of features of length 1 less a center, in nats.

    Args:
        features: The classifier's input, (N, D).
        center: What is subtracted, (D,).
        directions: The classifier's rows of length 1, (C, D).
    """
    return scaled_entropy((_to_length_1(features) - center) @ directions.T)


def _to_length_1(features: Tensor) -> Tensor:
    features = upcast(features)
    lengths: Tensor = vector_norm(features, dim=1, keepdim=True)
    return features / lengths.clamp(min=1e-12)


def classifier_directions(network: Network, features: Tensor) -> Tensor:
    """Return the rows of a network's linear classifier, of length 1 each, (C, D); an error names what is missing."""
    rows = network.classifier_directions
    if rows is None or rows.shape[1] != features.shape[1]:
        name, layer = network.find_classifier()
        raise ModelError(
            f"Expected layer `{name}` to be linear, with one feature vector per image, but it is a "
            f"{type(layer).__name__}. Name the right `classifier`, or choose a score of logits, such as "
            '`novelty="energy"`.'
        )
    return rows
