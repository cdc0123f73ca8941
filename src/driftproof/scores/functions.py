"""Novelty scores as functions of logits or features; larger is more novel.

Logits are (N, C) or (N, C, H, W); scores are (N,) or (N, H, W).
"""

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import avg_pool2d, normalize

from driftproof.errors import ConfigurationError
from driftproof.predictions import confidence_change, log_probabilities, upcast
from driftproof.predictions import entropy as prediction_entropy

__all__ = [
    "COSINE_SCALE",
    "confidence_difference",
    "cosine",
    "cosine_entropy",
    "cosines",
    "energy",
    "entropy",
    "local_entropy",
    "max_logit",
    "msp",
    "one_minus_largest",
    "scaled_entropy",
]

LOCAL_SIDE = 1 / 6
"""Of the square around a pixel. Chosen on CamVid under the held-out corruptions: a larger one gains little there, and
finds wrong pixels less well."""
COSINE_SCALE = 7.0
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


def local_entropy(logits: Tensor, side: float = LOCAL_SIDE) -> Tensor:
    """Return the entropy of the mean prediction around each pixel, in nats; for whole images it is `entropy`.

    A network takes an unknown object for pieces of several classes, and may be sure of each; their mean is not.

    Args:
        logits: (N, C, H, W), or (N, C).
        side: Of the square around a pixel, as a share of the shorter side of the image. At edges only the part inside
            counts.

    Examples:
        >>> import torch
        >>> classes = torch.tensor([0, 0, 0, 1, 0, 1]).expand(1, 6, 6)  # the network is sure of each pixel
        >>> logits = 99 * torch.nn.functional.one_hot(classes).movedim(3, 1).float()
        >>> local_entropy(logits, side=1 / 3)[0, 0].round(decimals=4)
        tensor([0.0000, 0.0000, 0.6365, 0.6365, 0.6365, 0.6931])
    """
    if not 0 <= side <= 1:
        raise ConfigurationError(f"Expected `side` to be in 0..1, but got {side}.")
    if logits.ndim == 2:
        return entropy(logits)
    mean, reach = log_probabilities(logits).exp(), round(side * min(logits.shape[2:]) / 2)
    for size in ((2 * reach + 1, 1), (1, 2 * reach + 1)):
        mean = avg_pool2d(mean, size, 1, (size[0] // 2, size[1] // 2), count_include_pad=False)
    return prediction_entropy(mean.clamp(min=torch.finfo(mean.dtype).tiny).log())


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
    return one_minus_largest(cosines(features, normalize(upcast(rows))))


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
    return scaled_entropy(cosines(features, normalize(upcast(rows))))


def cosines(features: Tensor, directions: Tensor) -> Tensor:
    """Return the cosines of features with rows of length 1."""
    features = upcast(features)
    lengths: Tensor = vector_norm(features, dim=1, keepdim=True)
    return features @ directions.T / lengths.clamp(min=1e-12)


def one_minus_largest(cosines: Tensor) -> Tensor:
    """Return 1 − max_k cos_k."""
    return 1 - cosines.amax(dim=1)


def scaled_entropy(cosines: Tensor) -> Tensor:
    """Return the entropy of softmax(7 cos)."""
    return entropy(COSINE_SCALE * cosines)
