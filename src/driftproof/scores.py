"""Novelty scores. **Larger is more novel**, for every score.

Functions compute a score from logits or features. Components compute it from a step, of the frozen or the adapted
network, and have names: `novelty="energy"`, `novelty="adapted_msp"`. Logits are (N, C) or (N, C, H, W); scores are (N,)
or (N, H, W).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import normalize

from driftproof.components import Component, Step
from driftproof.errors import ModelError
from driftproof.network import Network
from driftproof.predictions import confidence_change, log_probabilities, upcast
from driftproof.predictions import entropy as prediction_entropy
from driftproof.validation import check_choice

__all__ = [
    "NOVELTY_SCORES",
    "ConfidenceDrop",
    "Cosine",
    "CosineEntropy",
    "Detected",
    "FromLogits",
    "NoveltyScore",
    "Unfamiliarity",
    "confidence_difference",
    "cosine",
    "cosine_entropy",
    "energy",
    "entropy",
    "make_novelty",
    "max_logit",
    "msp",
    "score_unfamiliarity",
]

Of = Literal["frozen", "adapted"]

_SCALE = 7.0
"""Of cosines as logits. Chosen on the held-out corruptions, where 5 to 8 are about equal."""


def confidence_difference(logits: Tensor, source_logits: Tensor) -> Tensor:
    """Return the drop in confidence of the source model's class: ỹ^{c_o} − ŷ^{c_o}, in [−1, 1].

    Args:
        logits: Logits of the adapted model.
        source_logits: Logits of the source model on the same batch.

    Examples:
        >>> import torch
        >>> sure, unsure = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 0.0]])
        >>> confidence_difference(unsure, source_logits=sure) > 0.49
        tensor([True])
    """
    # 0 − x, not −x: an unchanged confidence gives 0, not −0.
    change = confidence_change(log_probabilities(logits), log_probabilities(source_logits), source_logits.argmax(dim=1))
    return 0 - change


def msp(logits: Tensor) -> Tensor:
    """Return 1 − max_k p^k, one minus the maximum softmax probability."""
    return 1 - log_probabilities(logits).amax(dim=1).exp()


def max_logit(logits: Tensor) -> Tensor:
    """Return the negative maximum logit, −max_k z_k."""
    return -upcast(logits).amax(dim=1)


def energy(logits: Tensor) -> Tensor:
    """Return the energy, −ln Σ_k exp z_k."""
    return -upcast(logits).logsumexp(dim=1)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of the prediction, H(p) = −Σ_k p^k ln p^k, in nats.

    Examples:
        >>> import torch
        >>> entropy(torch.zeros(1, 4)).exp()
        tensor([4.])
    """
    return prediction_entropy(log_probabilities(logits))


def cosine(features: Tensor, rows: Tensor) -> Tensor:
    """Return 1 − the largest cosine between the features and a row of the classifier, in [0, 2].

    Args:
        features: The classifier's input, (N, D).
        rows: The classifier's weight, (C, D).

    Examples:
        >>> import torch
        >>> cosine(torch.tensor([[2.0, 0.0], [0.0, -1.0]]), rows=torch.eye(2))
        tensor([0., 1.])
    """
    return _one_minus_largest(_cosines(features, normalize(upcast(rows))))


def cosine_entropy(features: Tensor, rows: Tensor) -> Tensor:
    """Return the entropy of softmax(7 cos), of the cosines between the features and the classifier's rows, in nats.

    Args:
        features: The classifier's input, (N, D).
        rows: The classifier's weight, (C, D).

    Examples:
        >>> import torch
        >>> cosine_entropy(torch.tensor([[1.0, 1.0]]), rows=torch.eye(2)).exp()
        tensor([2.])
    """
    return _scaled_entropy(_cosines(features, normalize(upcast(rows))))


def _cosines(features: Tensor, directions: Tensor) -> Tensor:
    """Return the cosines of features with rows of length 1."""
    features = upcast(features)
    lengths: Tensor = vector_norm(features, dim=1, keepdim=True)
    return features @ directions.T / lengths.clamp(min=1e-12)


def _one_minus_largest(cosines: Tensor) -> Tensor:
    return 1 - cosines.amax(dim=1)


def _scaled_entropy(cosines: Tensor) -> Tensor:
    return entropy(_SCALE * cosines)


class NoveltyScore(Component):
    """How unfamiliar each sample of a step is.

    A score of the frozen network costs its forward pass unless the method runs it anyway, or learns nothing.

    Attributes:
        bounds: Smallest and largest value the score can have.

    Examples:
        The smallest new score.

        >>> class SmallMargin(NoveltyScore):
        ...     def forward(self, step):
        ...         first, second = step.probabilities.topk(2, dim=1).values.unbind(dim=1)
        ...         return second - first
    """

    bounds: tuple[float, float] = (-math.inf, math.inf)

    def forward(self, step: Step) -> Tensor:
        """Return the score of each sample, (N,) or (N, H, W); gradients are off."""
        raise NotImplementedError


class ConfidenceDrop(NoveltyScore):
    """The confidence difference: how much adaptation lowered the confidence in the frozen network's class.

    `ConfidenceDifference()` selects exactly the samples where it is not above 0.
    """

    bounds = (-1.0, 1.0)

    def forward(self, step: Step) -> Tensor:
        """Return the drop; 0 while the networks are equal."""
        return 0 - step.confidence_change  # a negation would give −0


_FROM_LOGITS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, float]]] = {
    "msp": (msp, (0.0, 1.0)),
    "energy": (energy, (-math.inf, math.inf)),
    "max_logit": (max_logit, (-math.inf, math.inf)),
    "entropy": (entropy, (0.0, math.inf)),
}


class FromLogits(NoveltyScore):
    """A score of one network's logits, or of what the adapter answers.

    Args:
        score: `msp`, `energy`, `max_logit` or `entropy`.
        of: The frozen network θ_o, the adapted one θ_a, or the "answer", which may be of several networks or views.
    """

    def __init__(self, score: str, *, of: Of | Literal["answer"] = "frozen") -> None:
        super().__init__()
        self._function, self.bounds = _FROM_LOGITS[check_choice("score of logits", score, _FROM_LOGITS)]
        self.score = score
        self.of = of if of == "answer" else _check_of(of)

    def forward(self, step: Step) -> Tensor:
        """Return the score of each sample or pixel."""
        if self.of == "answer":
            return self._function(step.output)
        return self._function(step.logits if _is_adapted(self.of, step) else step.source_logits)


class Cosine(NoveltyScore):
    """One minus the largest cosine between the feature vector and a row of the classifier.

    The classifier is the last linear layer, or the one that `classifier=` names. Pixels have no feature vector.

    Args:
        of: The frozen network θ_o, or the adapted one θ_a.
    """

    bounds = (0.0, 2.0)
    needs_features = True  # a method that learns nothing has one network, the adapting one
    _function = staticmethod(_one_minus_largest)

    def __init__(self, *, of: Of = "frozen") -> None:
        super().__init__()
        self.of = _check_of(of)

    @property
    def needs_source_features(self) -> bool:  # type: ignore[override]  # a class attribute for other components
        """Whether the score is the frozen network's."""
        return self.of == "frozen"

    def forward(self, step: Step) -> Tensor:
        """Return the score of each sample."""
        adapted = _is_adapted(self.of, step)
        features = step.features if adapted else step.source_features
        directions = _classifier_directions(step.network if adapted else step.source, features)
        return self._function(_cosines(features, directions))


class CosineEntropy(Cosine):
    """The entropy of softmax(7 cos), of the cosines between the feature vector and the classifier's rows.

    Args:
        of: The frozen network θ_o, or the adapted one θ_a.
    """

    bounds = (0.0, math.inf)
    _function = staticmethod(_scaled_entropy)


class Detected(NoveltyScore):
    """What the method's detector says; needs `detector=`."""

    def forward(self, step: Step) -> Tensor:
        """Return the detector's score of each sample or pixel."""
        return step.detection.novelty


class Unfamiliarity(NoveltyScore):
    """The default: the frozen network's, of `score_unfamiliarity`.

    A step of a method that learns without the frozen network computes the adapted network's energy. Its record runs the
    frozen network when the novelty is first read, unless the batch is shared by several ranks.
    """

    needs_features = True
    needs_source_features = True

    def forward(self, step: Step) -> Tensor:
        """Return the score of each sample or pixel."""
        deferred = self.defer(step)
        if deferred is not None:
            compute, tensor = deferred
            return compute(tensor)
        learned = not step.always_at_source
        if learned and step.used_source:
            return energy(step.source_logits)
        if learned:
            return energy(step.logits)
        return score_unfamiliarity(step.network, step.logits, step.features if step.has_features else None)

    def defer(self, step: Step) -> tuple[Callable[..., Tensor], Tensor] | None:
        """Return a function that computes the score when it is read, and the tensor it needs of the step.

        None for pixels, whose logits are much larger than their scores, and where one network is both.
        """
        if step.always_at_source or step.logits.ndim != 2:
            return None
        if not step.used_source:
            return _energy_of_images, step.logits.detach()
        features, rows = step.source_features if step.has_source_features else None, step.source.classifier_rows
        if not _fit(features, rows, step.source_logits):
            return entropy, step.source_logits
        assert features is not None
        directions = _classifier_directions(step.source, features)
        return partial(_cosine_entropy, directions=directions), _own_memory(features)


def score_unfamiliarity(network: Network, logits: Tensor, features: Tensor | None) -> Tensor:
    """Return the best score measured of one network's pass: the entropy of cosines, and the energy for pixels.

    Where the classifier is not linear, or has no feature vector, it is the entropy.

    Args:
        network: Its classifier's rows are compared with the features.
        logits: (N, C), or (N, C, H, W) for pixels.
        features: The classifier's input; None where it is not known.
    """
    if logits.ndim > 2:
        return energy(logits)
    if not _fit(features, network.classifier_rows, logits):
        return entropy(logits)
    assert features is not None
    return _cosine_entropy(features, _classifier_directions(network, features))


def _fit(features: Tensor | None, rows: Tensor | None, logits: Tensor) -> bool:
    """Whether there are features, and one row of the classifier as long as they are for each logit."""
    return features is not None and rows is not None and rows.shape == (logits.shape[1], features.shape[1])


def _cosine_entropy(features: Tensor, directions: Tensor) -> Tensor:
    return _scaled_entropy(_cosines(features, directions))


def _energy_of_images(logits: Tensor) -> Tensor:
    # −ln Σ_k exp z_k = ln ŷ^k − z_k for every k.
    return log_probabilities(logits).amax(dim=1) - upcast(logits).amax(dim=1)


def _own_memory(features: Tensor) -> Tensor:
    """A tensor that keeps no larger one alive: features may be a few rows of all tokens."""
    is_part = features.untyped_storage().nbytes() > 2 * features.nbytes
    return features.clone() if is_part else features


def _classifier_directions(network: Network, features: Tensor) -> Tensor:
    rows = network.classifier_directions
    if rows is None or rows.shape[1] != features.shape[1]:
        name, layer = network.find_classifier()
        raise ModelError(
            f"Expected layer `{name}` to be linear, with one feature vector per image, but it is a "
            f"{type(layer).__name__}. Name the right `classifier`, or choose a score of logits, such as "
            '`novelty="energy"`.'
        )
    return rows


def _is_adapted(of: Of, step: Step) -> bool:
    # Networks that never differ need one pass.
    return of == "adapted" or step.always_at_source


def _check_of(of: Of) -> Of:
    check_choice("network", of, ("frozen", "adapted"))
    return of


NOVELTY_SCORES: dict[str, Callable[[], NoveltyScore]] = {
    "confidence_difference": ConfidenceDrop,
    **{name: partial(FromLogits, name) for name in _FROM_LOGITS},
    "cosine": Cosine,
    "cosine_entropy": CosineEntropy,
    **{f"adapted_{name}": partial(FromLogits, name, of="adapted") for name in _FROM_LOGITS},
    "adapted_cosine": partial(Cosine, of="adapted"),
    "adapted_cosine_entropy": partial(CosineEntropy, of="adapted"),
    **{f"answer_{name}": partial(FromLogits, name, of="answer") for name in _FROM_LOGITS},
    "detector": Detected,
}
"""The scores by name; those without a prefix are the frozen network's."""


def make_novelty(name: str) -> NoveltyScore:
    """Return the score of this name.

    Examples:
        >>> make_novelty("adapted_energy")
        FromLogits(score='energy', of='adapted')
    """
    return NOVELTY_SCORES[check_choice("novelty", name, NOVELTY_SCORES)]()
