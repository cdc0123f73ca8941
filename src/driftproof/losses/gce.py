"""Generalized cross-entropy on the model's own labels."""

import torch
from torch import Tensor

from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.losses.base import Loss

__all__ = ["GCE", "gce"]


def gce(log_p: Tensor, q: float = 0.8) -> Tensor:
    """(1 − p_ĉ^q)/q with ĉ = argmax p, from log-probabilities with classes along dimension 1.

    Examples:
        >>> gce(torch.tensor([[0.5, 0.5]]).log(), q=1.0)
        tensor([0.5000])
    """
    top = log_p.amax(dim=1)
    return -torch.expm1(q * top) / q


class GCE(Loss):
    """Generalized cross-entropy with the model's own hard labels, robust to wrong ones.

    Tends to cross-entropy on those labels as q → 0 and to 1 − p at q = 1.

    Args:
        q: q in (0, 1].
    """

    def __init__(self, q: float = 0.8) -> None:
        super().__init__()
        if not 0.0 < q <= 1.0:
            raise ConfigurationError(f"Expected `q` to be in (0, 1], but got {q}.")
        self.q = q

    def per_sample(self, step: Step) -> Tensor:
        """The loss against each sample's own label."""
        return gce(step.log_probabilities, self.q)
