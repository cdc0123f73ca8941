"""Entropy of an opinion that may be uncertain (COME)."""

import math

import torch
from torch import Tensor

from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.losses.base import Loss
from driftproof.predictions import upcast

__all__ = ["COME", "come"]


def come(logits: Tensor, uncertain_mass: float | None = None) -> Tensor:
    """The entropy of the C beliefs and of the uncertainty u of a subjective opinion.

    With S = Σ_k e^{z_k} + K, the beliefs are b_k = e^{z_k}/S and u = K/S: a softmax over the logits and ln K, which
    cannot overflow. Only the direction of the logits learns: the gradient is orthogonal to them.

    Args:
        logits: Classes along dimension 1.
        uncertain_mass: K; None is the number of classes.
    """
    z = upcast(logits)
    norm = torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp(min=1e-12)
    z = z * (norm.detach() / norm)
    mass = float(z.shape[1]) if uncertain_mass is None else uncertain_mass
    opinion = torch.cat([z, torch.full_like(z[:, :1], math.log(mass))], dim=1).softmax(dim=1) + 1e-7
    return -(opinion * opinion.log()).sum(dim=1)


class COME(Loss):
    """The entropy of a subjective opinion, which may say that it does not know.

    It takes the place of the entropy in any method; selections go on reading the entropy of the softmax, for which
    their thresholds were set.

    Args:
        uncertain_mass: K, the mass of "I do not know"; None is the number of classes C. The authors' code fixes 1000.

    Reference:
        Zhang et al., "COME: Test-time Adaption by Conservatively Minimizing Entropy", ICLR 2025.
    """

    def __init__(self, uncertain_mass: float | None = None) -> None:
        super().__init__()
        if uncertain_mass is not None and not 0 < uncertain_mass < math.inf:
            raise ConfigurationError(f"Expected `uncertain_mass` to be positive, but got {uncertain_mass}.")
        self.uncertain_mass = uncertain_mass

    def per_sample(self, step: Step) -> Tensor:
        """The entropy of each opinion."""
        return come(step.logits, self.uncertain_mass)
