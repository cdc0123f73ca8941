"""How often the prediction was wrong."""

import torch
from torch import Tensor

from driftproof.metrics.shapes import expect_same_shape

__all__ = ["Errors"]


class Errors:
    """Counts wrong predictions over batches, on the samples that show what the model was taught.

    Args:
        device: Where the batches are.

    Attributes:
        counts: (2,) int64: wrong known samples, known samples.

    Examples:
        >>> errors = Errors()
        >>> errors.add(torch.tensor([3, 1, 4, 1]), torch.tensor([3, 2, 4, -1]), torch.tensor([True, True, True, False]))
        >>> round(errors.result(), 2)
        33.33
    """

    def __init__(self, *, device: torch.device | str | None = None) -> None:
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)

    def add(self, predicted: Tensor, labels: Tensor, known: Tensor) -> None:
        """Count a batch.

        Args:
            predicted: Classes, (N,) or (N, H, W).
            labels: True classes, same shape; anything where they are unknown.
            known: Boolean mask of the samples that count, same shape.
        """
        expect_same_shape(predicted=predicted, labels=labels, known=known)
        wrong = (predicted != labels) & known
        self.counts = self.counts + torch.stack((wrong, known)).flatten(1).sum(dim=1)

    def result(self) -> float:
        """The error in percent; NaN before any known sample."""
        wrong, seen = self.counts.tolist()
        return 100 * wrong / seen if seen else float("nan")

    def reset(self) -> None:
        """Start again from nothing."""
        self.counts = torch.zeros_like(self.counts)
