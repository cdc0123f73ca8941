"""Conjugate pseudo-labels."""

from torch import Tensor

from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.losses.base import Loss
from driftproof.predictions import log_probabilities, upcast

__all__ = ["Conjugate", "conjugate", "conjugate_labels"]


def conjugate_labels(p: Tensor, epsilon: float) -> Tensor:
    """The soft labels y* that solve (I + ε (diag p − p pᵀ)) y* = p, classes along dimension 1; they sum to one.

    The matrix is a diagonal less a rank-one term, so the Sherman–Morrison formula gives u/(1 − ε pᵀu) with
    u = p/(1 + ε p), and no matrix is formed.
    """
    u = p / (1 + epsilon * p)
    return u / (1 - epsilon * (p * u).sum(dim=1, keepdim=True))


def conjugate(logits: Tensor, epsilon: float = 0.0, temperature: float = 1.0) -> Tensor:
    """The conjugate loss of a model trained with cross-entropy + ε (1 − p_y).

    lse(z) − Σ_k y*_k z_k + ε Σ_k y*_k (1 − p_k) on z/T, with gradients through y* and p. At ε = 0 this is the entropy.
    """
    log_p = log_probabilities(upcast(logits) / temperature)
    p = log_p.exp()
    labels = conjugate_labels(p, epsilon)
    # The labels sum to one, so lse(z) − Σ y* z is the cross-entropy −Σ y* ln p.
    return -(labels * log_p).sum(dim=1) + epsilon * (labels * (1 - p)).sum(dim=1)


class Conjugate(Loss):
    """The loss that the model's own training loss implies for unlabelled data.

    Args:
        epsilon: ε of the PolyLoss the model was trained with; 0 for cross-entropy, where the loss is the entropy.
        temperature: T, divides the logits inside the loss.
    """

    def __init__(self, epsilon: float = 0.0, temperature: float = 1.0) -> None:
        super().__init__()
        if epsilon < 0 or temperature <= 0:
            raise ConfigurationError(
                "Expected `epsilon` to be at least 0 and `temperature` to be positive, "
                f"but got {epsilon} and {temperature}."
            )
        self.epsilon = epsilon
        self.temperature = temperature

    def per_sample(self, step: Step) -> Tensor:
        """The conjugate loss of each prediction."""
        return conjugate(step.logits, self.epsilon, self.temperature)
