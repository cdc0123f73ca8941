"""Which class was taken for which, and how well label maps overlap."""

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError, InputError
from driftproof.metrics.shapes import expect_same_shape

__all__ = ["ConfusionMatrix"]


class ConfusionMatrix:
    """Counts pairs of true and predicted class over batches of label maps.

    Args:
        classes: How many there are.
        ignore: Label of the pixels that do not count.
        device: Where the batches are.

    Attributes:
        counts: ((classes + 2)² + 1,) int64: the matrix with a border for labels that are no class, then the ignored.

    Examples:
        >>> confusion = ConfusionMatrix(3)
        >>> confusion.add(torch.tensor([[0, 0], [1, 2]]), torch.tensor([[0, 1], [1, 255]]))
        >>> confusion.iou()
        tensor([0.5000, 0.5000,    nan], dtype=torch.float64)
        >>> confusion.mean_iou()
        0.5
    """

    def __init__(self, classes: int, *, ignore: int = 255, device: torch.device | str | None = None) -> None:
        if classes < 1:
            raise ConfigurationError(f"Expected `classes` to be at least 1, but got {classes}.")
        self.classes = classes
        self.ignore = ignore
        self.counts = torch.zeros((classes + 2) ** 2 + 1, dtype=torch.int64, device=device)

    def add(self, predicted: Tensor, labels: Tensor) -> None:
        """Count a batch.

        Args:
            predicted: Classes, (N,) or (N, H, W).
            labels: True classes, or `ignore`, same shape.
        """
        expect_same_shape(predicted=predicted, labels=labels)
        ignored = labels == self.ignore
        # Clamping keeps a wrong label from being a fault on the device; the border remembers it until the host looks.
        row, column = (classes.long().clamp(-1, self.classes) + 1 for classes in (labels, predicted))
        cell = torch.add(column, row, alpha=self.classes + 2).masked_fill(ignored, len(self.counts) - 1).flatten()
        self.counts = self.counts.index_add(0, cell, torch.ones_like(cell))  # bincount would ask the device for a size

    def matrix(self) -> Tensor:
        """How many pixels of each true class (row) were given each class (column), (classes, classes) int64."""
        bordered = self.counts[:-1].view(self.classes + 2, -1)
        inner = bordered[1:-1, 1:-1]
        strays = int(bordered.sum() - inner.sum())
        if strays:
            raise InputError(
                f"Expected classes in 0..{self.classes - 1}, or {self.ignore} where a label is to be ignored, "
                f"but {strays} pixels had others. Map the labels to classes first."
            )
        return inner

    def iou(self) -> Tensor:
        """TP / (TP + FP + FN) per class, (classes,); NaN for a class that was neither there nor predicted."""
        matrix = self.matrix()
        both = matrix.diagonal().double()
        return both / (matrix.sum(dim=0) + matrix.sum(dim=1) - both)

    def mean_iou(self) -> float:
        """The mean over the classes that were there or predicted, in [0, 1]."""
        return float(self.iou().nanmean())

    def reset(self) -> None:
        """Start again from nothing."""
        self.counts = torch.zeros_like(self.counts)
