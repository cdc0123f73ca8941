"""The default novelty score."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from driftproof.components import Step
from driftproof.network import Network
from driftproof.predictions import log_probabilities, upcast
from driftproof.scores.base import NoveltyScore
from driftproof.scores.from_features import FeatureCenter, centered_cosine_entropy, classifier_directions
from driftproof.scores.functions import cosines, energy, entropy, scaled_entropy

__all__ = ["Unfamiliarity", "score_unfamiliarity"]

Deferred = tuple[Callable[..., Tensor], tuple[Tensor, ...]]
"""A function, and the tensors that it computes a score from."""

_UNCENTERED = 0.3
"""The share of the stream in the statistics from which on nothing is subtracted: they center features themselves."""


class Unfamiliarity(NoveltyScore):
    """The default: of the frozen network, the entropy of cosines for images, and the energy for pixels.

    Where the frozen network normalizes with training's statistics, or with less than 30 % of the stream's, the cosines
    are centered, in proportion to what is missing (`CenteredCosineEntropy`).

    A step of a method that learns without the frozen network computes the adapted network's energy. Its record runs the
    frozen network when the novelty is first read, unless the batch is shared by several ranks; then nothing is
    centered, since what is not read is not seen.
    """

    needs_features = True
    needs_source_features = True

    def __init__(self) -> None:
        super().__init__()
        self.center = FeatureCenter()

    def forward(self, step: Step) -> Tensor:
        """Return the score of each sample or pixel."""
        deferred = self.defer(step)
        if deferred is not None:
            compute, tensors = deferred
            return compute(*tensors)
        if step.always_at_source:
            return self._score(step.network, step.logits, step.features if step.has_features else None)
        return energy(step.source_logits if step.used_source else step.logits)

    def defer(self, step: Step) -> Deferred | None:
        """Return a function that computes the score when it is read, and the tensors it needs of the step.

        None for pixels, whose logits are much larger than their scores, and where one network is both.
        """
        if step.always_at_source or step.logits.ndim != 2:
            return None
        if not step.used_source:
            return _energy_of_images, (step.logits.detach(),)
        features = step.source_features if step.has_source_features else None
        return self._prepare(step.source, step.source_logits, features)

    def on_batch(self, step: Step) -> None:
        """Remember the batch."""
        self.center.on_batch(step)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget the stream."""
        self.center.reset_state(network, parameters)

    def _score(self, network: Network, logits: Tensor, features: Tensor | None) -> Tensor:
        if logits.ndim > 2:
            return energy(logits)
        compute, tensors = self._prepare(network, logits, features)
        return compute(*tensors)

    def _prepare(self, network: Network, logits: Tensor, features: Tensor | None) -> Deferred:
        """What computes the scores of images, and from what."""
        if features is None or not _fit(features, network.classifier_rows, logits):
            return entropy, (logits,)
        directions, own = classifier_directions(network, features), _own_memory(features)
        missing = 1 - network.stream_share / _UNCENTERED
        if not isinstance(missing, Tensor) and missing <= 0:
            return partial(_cosine_entropy, directions=directions), (own,)
        center = self.center.include(features, directions, network.distributed)
        center = center * (missing.clamp(min=0.0) if isinstance(missing, Tensor) else missing)
        return partial(centered_cosine_entropy, directions=directions), (own, center)


def score_unfamiliarity(network: Network, logits: Tensor, features: Tensor | None) -> Tensor:
    """Return the default score of one network's pass, not centered.

    Where the classifier is not linear, or has no feature vector, it is the entropy.

    Args:
        network: Its classifier's rows are compared with the features.
        logits: (N, C), or (N, C, H, W) for pixels.
        features: The classifier's input; None where it is not known.
    """
    if logits.ndim > 2:
        return energy(logits)
    if features is None or not _fit(features, network.classifier_rows, logits):
        return entropy(logits)
    return _cosine_entropy(features, classifier_directions(network, features))


def _fit(features: Tensor, rows: Tensor | None, logits: Tensor) -> bool:
    """Whether there is one row of the classifier, as long as the features, for each logit."""
    return rows is not None and rows.shape == (logits.shape[1], features.shape[1])


def _cosine_entropy(features: Tensor, directions: Tensor) -> Tensor:
    return scaled_entropy(cosines(features, directions))


def _energy_of_images(logits: Tensor) -> Tensor:
    # −ln Σ_k exp z_k = ln ŷ^k − z_k for every k.
    return log_probabilities(logits).amax(dim=1) - upcast(logits).amax(dim=1)


def _own_memory(features: Tensor) -> Tensor:
    """A tensor that keeps no larger one alive: features may be a few rows of all tokens."""
    is_part = features.untyped_storage().nbytes() > 2 * features.nbytes
    return features.clone() if is_part else features
