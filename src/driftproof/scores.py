"""How novel a sample looks, from its logits. One sign rule everywhere: **larger is more novel**.

Classes lie along dimension 1, (N, C) or (N, C, H, W); one score comes back per sample (pixel).
"""

from torch import Tensor

from driftproof import predictions

__all__ = ["confidence_difference", "energy", "entropy", "max_logit", "msp"]


def confidence_difference(logits: Tensor, source_logits: Tensor) -> Tensor:
    """ỹ^{c_o} − ŷ^{c_o}: how far confidence in the original model's class fell during adaptation, in [−1, 1].

    Args:
        logits: Of the adapted model.
        source_logits: Of the original model, on the same batch.

    Examples:
        >>> import torch
        >>> sure, unsure = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 0.0]])
        >>> confidence_difference(unsure, source_logits=sure) > 0.49
        tensor([True])
    """
    # Negated, what did not fall would be −0.
    return 0 - predictions.confidence_change(predictions.log_probabilities(logits), source_logits)


def msp(logits: Tensor) -> Tensor:
    """1 − max_k p^k, one less the maximum softmax probability."""
    return 1 - predictions.log_probabilities(logits).amax(dim=1).exp()


def max_logit(logits: Tensor) -> Tensor:
    """−max_k z_k."""
    return -predictions.upcast(logits).amax(dim=1)


def energy(logits: Tensor) -> Tensor:
    """−ln Σ_k exp z_k."""
    return -predictions.upcast(logits).logsumexp(dim=1)


def entropy(logits: Tensor) -> Tensor:
    """H(p) = −Σ_k p^k ln p^k, in nats.

    Examples:
        >>> import torch
        >>> entropy(torch.zeros(1, 4)).exp()
        tensor([4.])
    """
    return predictions.entropy(predictions.log_probabilities(logits))
