"""Selection of what was not learned from before."""

import torch
from torch import Tensor, nn

from driftproof.components import Step
from driftproof.network import Network
from driftproof.selection.base import Selection

__all__ = ["NonRedundant"]


class NonRedundant(Selection):
    """Learn from samples unlike what was learned before: |cos(m, ŷ)| < ε.

    m is a moving average of the mean kept prediction, m ← 0.9 m + 0.1·mean, counted after every other selection has
    had its say; while nothing has been kept yet, all samples pass.

    Args:
        similarity: ε.
        momentum: Share of itself the average keeps.
    """

    average: Tensor | None

    def __init__(self, similarity: float, momentum: float = 0.9) -> None:
        super().__init__()
        self.similarity = similarity
        self.momentum = momentum
        self.register_buffer("average", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget the average."""
        self.average = None

    def on_reset(self, step: Step, condition: Tensor) -> None:
        """Forget the average together with the weights."""
        if self.average is not None:
            self.average = self.average.masked_fill(condition, 0.0)

    def weights(self, step: Step) -> Tensor:
        """One where the prediction points away from the average."""
        if self.average is None:
            return torch.ones_like(step.weights)
        p = step.log_probabilities.detach().exp()
        average = self.average.view(1, -1, *([1] * (p.ndim - 2)))
        cosine = torch.cosine_similarity(p, average, dim=1)
        return (cosine.abs() < self.similarity).to(step.weights.dtype)

    def on_batch(self, step: Step) -> None:
        """Move the average towards what was kept; where nothing was, leave it."""
        kept = (step.weights > 0).to(step.weights.dtype)
        p = step.log_probabilities.detach().exp().transpose(0, 1)
        total, count = step.distributed.sum((p * kept).flatten(start_dim=1).sum(dim=1), kept.sum())
        mean = total / count.clamp(min=1)
        # A zero vector stands for "nothing kept yet": its cosine with everything is zero.
        before = torch.zeros_like(mean) if self.average is None else self.average
        moved = torch.where(before.any(), torch.lerp(mean, before, self.momentum), mean)
        self.average = torch.where(count > 0, moved, before)
