"""AugMix loss: cross-entropy plus Jensen–Shannon consistency."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["augmix_loss", "jensen_shannon"]


def jensen_shannon(logits_clean: Tensor, logits_1: Tensor, logits_2: Tensor) -> Tensor:
    """Return the Jensen–Shannon divergence of three predictions, averaged over the batch.

    (KL(p ‖ m) + KL(p₁ ‖ m) + KL(p₂ ‖ m)) / 3 with m the mean distribution, clamped to [1e-7, 1].

    Examples:
        >>> logits = torch.randn(2, 3)
        >>> float(jensen_shannon(logits, logits, logits).abs()) < 1e-6
        True
    """
    logs = torch.stack([logits_clean, logits_1, logits_2]).log_softmax(dim=-1)
    mean = logs.exp().mean(dim=0).clamp(1e-7, 1.0).log()
    # Log targets keep the gradient finite where a probability underflows to 0.
    return F.kl_div(mean.expand_as(logs), logs, reduction="sum", log_target=True) / (3 * len(mean))


def augmix_loss(
    logits_clean: Tensor, logits_1: Tensor, logits_2: Tensor, labels: Tensor, *, weight: float = 12.0
) -> Tensor:
    """Return the cross-entropy on clean images plus `weight` times the Jensen–Shannon divergence.

    Examples:
        >>> logits, labels = torch.zeros(2, 4), torch.tensor([0, 1])
        >>> round(float(augmix_loss(logits, logits, logits, labels).exp()), 4)
        4.0
    """
    divergence = jensen_shannon(logits_clean, logits_1, logits_2)
    return F.cross_entropy(logits_clean, labels) + weight * divergence
