"""Novelty scores from logits. **Larger is more novel**, for every score.

Logits are (N, C) or (N, C, H, W); scores are (N,) or (N, H, W).
"""

from torch import Tensor

from driftproof.predictions import confidence_change, log_probabilities, upcast
from driftproof.predictions import entropy as prediction_entropy

__all__ = ["confidence_difference", "energy", "entropy", "max_logit", "msp"]


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
    return 0 - confidence_change(log_probabilities(logits), source_logits)


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
