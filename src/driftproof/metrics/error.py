"""Error rate on known samples."""

import torch
from torch import Tensor

from driftproof.metrics.ratio import Ratio, make_ratio
from driftproof.metrics.shapes import check_same_shape

__all__ = ["ErrorRate"]


class ErrorRate:
    """Error rate in percent over batches, on the samples of known classes.

    Args:
        device: Device of the batches.

    Attributes:
        counts: (2,) int64: number of wrong known samples, number of known samples.

    Examples:
        >>> errors = ErrorRate()
        >>> known = torch.tensor([True, True, True, False])
        >>> errors.update(torch.tensor([3, 1, 4, 1]), torch.tensor([3, 2, 4, -1]), known)
        >>> round(errors.compute(), 2)
        33.33
    """

    def __init__(self, *, device: torch.device | str | None = None) -> None:
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)

    def update(self, predicted: Tensor, labels: Tensor, known: Tensor) -> None:
        """Count a batch.

        Args:
            predicted: Classes, (N,) or (N, H, W).
            labels: True classes, same shape; any value where unknown.
            known: Boolean mask of the known samples, same shape.
        """
        check_same_shape(predicted=predicted, labels=labels, known=known)
        wrong = (predicted != labels) & known
        self.counts = self.counts + torch.stack((wrong, known)).flatten(1).sum(dim=1)

    def compute(self) -> float:
        """Return the error in percent; NaN without any known sample."""
        return self.compute_ratio().value

    def compute_ratio(self) -> Ratio:
        """Return the error in percent with the number of known samples."""
        wrong, known = self.counts.tolist()
        return make_ratio(wrong, known, scale=100)

    def reset(self) -> None:
        """Clear the counts."""
        self.counts = torch.zeros_like(self.counts)
