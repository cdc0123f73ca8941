"""Confusion matrix and intersection over union."""

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError, InputError
from driftproof.metrics.shapes import check_same_shape

__all__ = ["ConfusionMatrix"]


class ConfusionMatrix:
    """Confusion matrix over batches of label maps.

    Args:
        classes: Number of classes.
        ignore_index: Label of the pixels to ignore.
        device: Device of the batches.

    Attributes:
        counts: ((classes + 2)² + 1,) int64: the matrix with a border for invalid labels, then the number of ignored
            pixels.

    Examples:
        >>> confusion = ConfusionMatrix(3)
        >>> confusion.update(torch.tensor([[0, 0], [1, 2]]), torch.tensor([[0, 1], [1, 255]]))
        >>> confusion.iou()
        tensor([0.5000, 0.5000,    nan], dtype=torch.float64)
        >>> confusion.mean_iou()
        0.5
    """

    def __init__(self, classes: int, *, ignore_index: int = 255, device: torch.device | str | None = None) -> None:
        if classes < 1:
            raise ConfigurationError(f"Expected `classes` to be at least 1, but got {classes}.")
        self.classes = classes
        self.ignore_index = ignore_index
        self.counts = torch.zeros((classes + 2) ** 2 + 1, dtype=torch.int64, device=device)

    def update(self, predicted: Tensor, labels: Tensor) -> None:
        """Count a batch.

        Args:
            predicted: Classes, (N,) or (N, H, W).
            labels: True classes or `ignore_index`, same shape.
        """
        check_same_shape(predicted=predicted, labels=labels)
        ignored = labels == self.ignore_index
        # Clamping moves invalid labels to the border: no device-side assert here, an error in `compute`.
        row, column = (classes.long().clamp(-1, self.classes) + 1 for classes in (labels, predicted))
        cell = torch.add(column, row, alpha=self.classes + 2).masked_fill(ignored, len(self.counts) - 1).flatten()
        self.counts = self.counts.index_add(0, cell, torch.ones_like(cell))  # bincount would synchronize

    def compute(self) -> Tensor:
        """Return the matrix, (classes, classes) int64: true classes in rows, predicted classes in columns.

        Raises:
            InputError: If a label or a prediction was not a class.
        """
        bordered = self.counts[:-1].view(self.classes + 2, -1)
        inner = bordered[1:-1, 1:-1]
        invalid = int(bordered.sum() - inner.sum())
        if invalid:
            raise InputError(
                f"Expected classes in 0..{self.classes - 1}, or {self.ignore_index} for ignored labels, "
                f"but {invalid} pixels had others. Map the labels to classes first."
            )
        return inner

    def iou(self) -> Tensor:
        """Return TP / (TP + FP + FN) per class, (classes,); NaN for a class neither present nor predicted."""
        matrix = self.compute()
        correct = matrix.diagonal().double()
        return correct / (matrix.sum(dim=0) + matrix.sum(dim=1) - correct)

    def mean_iou(self) -> float:
        """Return the mean IoU, in [0, 1], over the classes that were present or predicted."""
        return float(self.iou().nanmean())

    def reset(self) -> None:
        """Clear the counts."""
        self.counts = torch.zeros_like(self.counts)
