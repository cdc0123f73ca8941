"""Ranking by a score of more samples than can be sorted."""

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError
from driftproof.metrics.ranking import auroc_of_counts, fpr_of_counts
from driftproof.metrics.shapes import expect_same_shape

__all__ = ["BinnedScores"]

_BINS = 2**16


class BinnedScores:
    """How often each score occurs in each of several groups of samples, over batches.

    A score is told apart by the leading 16 bits of its single-precision form: sign, exponent, and seven bits after the
    leading one. So scores within 1 % of each other may count as ties, however small they are, and what is computed
    from the counts is exact but for those ties. A NaN is remembered: what is not a number ranks nothing.

    Args:
        groups: How many groups there are.
        device: Where the batches are.

    Attributes:
        counts: (groups × 65,536 + 2,) int64: occurrences in ascending order of scores, group by group; then samples of
            no group, and NaN among the others.

    Examples:
        >>> scores = BinnedScores(2)
        >>> scores.add(torch.tensor([0.9, 0.5, 0.5, 0.1]), torch.tensor([0, 0, 1, 1]))
        >>> scores.auroc(0, 1)
        0.875
    """

    def __init__(self, groups: int, *, device: torch.device | str | None = None) -> None:
        if groups < 1:
            raise ConfigurationError(f"Expected `groups` to be at least 1, but got {groups}.")
        self.groups = groups
        self.counts = torch.zeros(groups * _BINS + 2, dtype=torch.int64, device=device)

    def add(self, scores: Tensor, groups: Tensor) -> None:
        """Count a batch.

        Args:
            scores: Of any shape.
            groups: The group of each sample, same shape; −1 for samples that do not count.
        """
        expect_same_shape(scores=scores, groups=groups)
        place = groups.long() * _BINS + _bin(scores.float())
        place = place.masked_fill(scores.isnan(), self.groups * _BINS + 1)
        place = place.masked_fill(groups < 0, self.groups * _BINS).flatten()
        self.counts = self.counts.index_add(0, place, torch.ones_like(place))

    def of(self, *groups: int) -> Tensor:
        """Occurrences of each score in some groups together, from the lowest score, on the host."""
        return self.counts[:-2].view(self.groups, _BINS)[list(groups)].sum(dim=0).cpu()

    @property
    def ranked(self) -> bool:
        """Whether every score that counts is a number."""
        return not int(self.counts[-1])

    def auroc(self, positives: int, *negatives: int) -> float:
        """The probability that a sample of one group outscores one of the others; NaN if a score is none."""
        return auroc_of_counts(self.of(positives), self.of(*negatives)) if self.ranked else float("nan")

    def fpr_at_tpr(self, positives: int, *negatives: int, tpr: float = 0.95) -> float:
        """The share of the other groups accepted where the share `tpr` of one is; NaN if a score is none."""
        return fpr_of_counts(self.of(positives), self.of(*negatives), tpr) if self.ranked else float("nan")


def _bin(scores: Tensor) -> Tensor:
    """Places in ascending order of the scores: as integers, floats of one sign are in order of their magnitude."""
    bits = (scores + 0.0).view(torch.int32) >> 16  # adding zero makes one of the two zeros
    return torch.where(bits < 0, -1 - (bits & 0x7FFF), bits).long() + _BINS // 2
