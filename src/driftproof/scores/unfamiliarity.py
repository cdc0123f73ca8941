"""The default novelty score."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from driftproof.components import Step
from driftproof.network import Network
from driftproof.predictions import log_probabilities, upcast
from driftproof.scores.base import NoveltyScore
from driftproof.scores.from_features import FeatureCenter, centered_cosine_entropy, classifier_directions
from driftproof.scores.functions import energy, entropy

__all__ = ["Unfamiliarity"]

Deferred = tuple[Callable[..., Tensor], tuple[Tensor, ...]]
"""A function, and the tensors that it computes a score from."""


class Unfamiliarity(NoveltyScore):
    """The default: of the frozen network, the centered entropy of cosines for images, and the energy for pixels.

    Images are scored as by `CenteredCosineEntropy`; where the classifier is not linear, or has no feature vector, by
    the entropy of the prediction.

    A step of a method that learns without the frozen network computes the adapted network's energy. Its record runs the
    frozen network when the novelty is first read (`score_later`), unless the batch is shared by several ranks.
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

    def score_later(
        self, network: Network, logits: Tensor, features: Tensor | None, condition: Tensor | None
    ) -> Tensor:
        """Return the score of a pass that was made after the step.

        Args:
            network: The frozen network, which made the pass.
            logits: (N, C), or (N, C, H, W) for pixels.
            features: The classifier's input; None where it is not known.
            condition: Whether the center remembers the batch, as a 0-d tensor; None is never.
        """
        novelty = self._score(network, logits, features)
        self.center.settle(condition)
        return novelty

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
        directions = classifier_directions(network, features)
        center = self.center.include(features, directions, network.distributed)
        return partial(centered_cosine_entropy, directions=directions), (_own_memory(features), center)


def _fit(features: Tensor, rows: Tensor | None, logits: Tensor) -> bool:
    """Whether there is one row of the classifier, as long as the features, for each logit."""
    return rows is not None and rows.shape == (logits.shape[1], features.shape[1])


def _energy_of_images(logits: Tensor) -> Tensor:
    # −ln Σ_k exp z_k = ln ŷ^k − z_k for every k.
    return log_probabilities(logits).amax(dim=1) - upcast(logits).amax(dim=1)


def _own_memory(features: Tensor) -> Tensor:
    """A tensor that keeps no larger one alive: features may be a few rows of all tokens."""
    is_part = features.untyped_storage().nbytes() > 2 * features.nbytes
    return features.clone() if is_part else features
