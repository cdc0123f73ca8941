"""Predictions that agree with those of neighbors in the batch (LAME)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from driftproof.components import Step
from driftproof.errors import ConfigurationError, ModelError
from driftproof.outputs.base import Output
from driftproof.predictions import upcast

__all__ = ["LaplacianAdjusted"]


class LaplacianAdjusted(Output):
    """Log-probabilities that stay near the network's and agree among neighbors in feature space (LAME).

    Y ← softmax(ln p + K Y), starting at Y = p, with the affinity K_ij = exp(−d_ij²/2σ²) between normalized features and
    σ the mean distance to the k-th nearest one. Every sample is compared with every other: memory grows with N².

    Open choices taken: always the same number of iterations, without a test for convergence; a batch of fewer than k
    samples takes its farthest one. As in the authors' code a sample is the nearest to itself, and K_ii = 1.

    Args:
        neighbors: k.
        iterations: How often Y is updated.
        strength: Factor on K; 0 returns the network's prediction.
    """

    needs_features = True

    def __init__(self, neighbors: int = 5, iterations: int = 100, strength: float = 1.0) -> None:
        super().__init__()
        if neighbors < 1 or iterations < 1:
            raise ConfigurationError(
                f"Expected `neighbors` and `iterations` to be at least 1, but got {neighbors} and {iterations}."
            )
        self.neighbors = neighbors
        self.iterations = iterations
        self.strength = strength

    def predict(self, step: Step) -> Tensor:
        """The adjusted log-probabilities, over the batch of all ranks."""
        if step.logits.ndim > 2:
            raise ModelError(
                f"Expected logits of shape (N, C), but got {tuple(step.logits.shape)}: LAME compares every sample of a "
                "batch with every other, which pixels are too many for."
            )
        features = F.normalize(upcast(step.features.detach()), dim=1)
        rows = torch.cat([features, step.log_probabilities.detach()], dim=1)
        ranks = step.distributed
        return ranks.map_global_batch(rows, lambda batch: self._adjust(ranks.sum(batch)[0], step.classes))

    def _adjust(self, rows: Tensor, classes: int) -> Tensor:
        features, log_p = rows[:, :-classes], rows[:, -classes:]
        squared = (2 - 2 * features @ features.T).clamp(min=0)
        nearest = squared.topk(min(self.neighbors, len(rows)), largest=False).values[:, -1]
        affinity = self.strength * torch.exp(-squared / (2 * nearest.sqrt().mean() ** 2).clamp(min=1e-12))
        unary = (log_p.exp() + 1e-10).log()
        scores = unary + affinity @ log_p.exp()
        for _ in range(self.iterations - 1):
            scores = unary + affinity @ scores.softmax(dim=1)
        return scores.log_softmax(dim=1)
