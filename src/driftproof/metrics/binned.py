"""Ranking metrics from histograms, for more samples than can be sorted."""

import math

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError
from driftproof.metrics.ranking import auroc_from_counts, fpr_from_counts
from driftproof.metrics.shapes import check_same_shape

__all__ = ["BinnedScores"]

_BINS = 2**16


class BinnedScores:
    """Histogram of scores per group of samples, over batches.

    A bin is the leading 16 bits of a float32: sign, exponent and the first seven bits of the fraction. So scores within
    1 % of each other may count as ties, at any magnitude, and the results are exact except for these ties. After a NaN
    score, every ranking metric is NaN.

    Args:
        groups: Number of groups.
        device: Device of the batches.

    Attributes:
        counts: (groups × 65,536 + 2,) int64: one histogram per group, in ascending order of scores; then the number of
            ignored samples, and of NaN scores among the others.

    Examples:
        >>> scores = BinnedScores(2)
        >>> scores.update(torch.tensor([0.9, 0.5, 0.5, 0.1]), torch.tensor([0, 0, 1, 1]))
        >>> scores.auroc(0, 1)
        0.875
    """

    def __init__(self, groups: int, *, device: torch.device | str | None = None) -> None:
        if groups < 1:
            raise ConfigurationError(f"Expected `groups` to be at least 1, but got {groups}.")
        self.groups = groups
        self.counts = torch.zeros(groups * _BINS + 2, dtype=torch.int64, device=device)

    def update(self, scores: Tensor, groups: Tensor) -> None:
        """Count a batch.

        Args:
            scores: Scores of any shape.
            groups: Group of each sample, same shape; −1 for samples to ignore.
        """
        check_same_shape(scores=scores, groups=groups)
        index = groups.long() * _BINS + _bin_index(scores.float())
        index = index.masked_fill(scores.isnan(), self.groups * _BINS + 1)
        index = index.masked_fill(groups < 0, self.groups * _BINS).flatten()
        self.counts = self.counts.index_add(0, index, torch.ones_like(index))

    def histogram(self, *groups: int) -> Tensor:
        """Return the joint histogram of some groups, from the lowest score, on the CPU."""
        return self.counts[:-2].view(self.groups, _BINS)[list(groups)].sum(dim=0).cpu()

    def reset(self) -> None:
        """Clear the counts."""
        self.counts = torch.zeros_like(self.counts)

    @property
    def has_nan(self) -> bool:
        """Whether a score that counts is NaN."""
        return bool(self.counts[-1])

    def auroc(self, positives: int, *negatives: int) -> float:
        """Return the probability that a positive outscores a negative; NaN if a score is NaN."""
        return math.nan if self.has_nan else auroc_from_counts(self.histogram(positives), self.histogram(*negatives))

    def fpr_at_tpr(self, positives: int, *negatives: int, tpr: float = 0.95) -> float:
        """Return the false positive rate at the given true positive rate; NaN if a score is NaN."""
        return math.nan if self.has_nan else fpr_from_counts(self.histogram(positives), self.histogram(*negatives), tpr)


def _bin_index(scores: Tensor) -> Tensor:
    """Return bin indices that increase with the scores: as integers, floats of one sign sort by magnitude."""
    bits = (scores + 0.0).view(torch.int32) >> 16  # adding 0.0 turns -0.0 into 0.0
    return torch.where(bits < 0, -1 - (bits & 0x7FFF), bits).long() + _BINS // 2
