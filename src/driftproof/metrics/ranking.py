"""AUROC, FPR at a given TPR, and average precision. A higher score means more positive.

Whoever counts known samples as positives negates novelty scores first.
"""

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError, InputError

__all__ = [
    "auroc",
    "auroc_from_counts",
    "average_precision",
    "average_precision_from_counts",
    "counts_by_score",
    "fpr_at_tpr",
    "fpr_from_counts",
]

_INT64 = 2**63


def auroc(positives: Tensor, negatives: Tensor) -> float:
    """Return the exact probability that a positive outscores a negative; a tie counts half.

    Args:
        positives: Scores of the positives, of any shape.
        negatives: Scores of the negatives, of any shape.

    Examples:
        >>> auroc(torch.tensor([0.9, 0.5]), torch.tensor([0.5, 0.1]))
        0.875
    """
    return auroc_from_counts(*counts_by_score(positives, negatives))


def fpr_at_tpr(positives: Tensor, negatives: Tensor, tpr: float = 0.95) -> float:
    """Return the false positive rate at the threshold with the given true positive rate.

    Scores at or above the threshold are accepted. If several thresholds give exactly `tpr`, the strictest is used. If
    ties leave none, the rate is interpolated linearly between the neighboring points of the ROC curve. A constant score
    accepts everything: the result is 1.

    Args:
        positives: Scores of the positives, of any shape.
        negatives: Scores of the negatives, of any shape.
        tpr: True positive rate, in (0, 1].

    Examples:
        >>> fpr_at_tpr(torch.arange(100.0), torch.arange(10.0))
        0.5
    """
    return fpr_from_counts(*counts_by_score(positives, negatives), tpr)


def average_precision(positives: Tensor, negatives: Tensor) -> float:
    """Return the area under the precision-recall curve, as a sum over thresholds; NaN without positives or negatives.

    Σ_t (R_t − R_{t−1}) P_t, from the highest score. Unlike the AUROC it depends on the share of positives.

    Args:
        positives: Scores of the positives, of any shape.
        negatives: Scores of the negatives, of any shape.

    Examples:
        >>> average_precision(torch.tensor([0.9, 0.3]), torch.tensor([0.5, 0.1]))
        0.8333333333333333
    """
    return average_precision_from_counts(*counts_by_score(positives, negatives))


def auroc_from_counts(positives: Tensor, negatives: Tensor) -> float:
    """Return the AUROC from the numbers of positives and negatives per score, in ascending order.

    Examples:
        >>> auroc_from_counts(torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0]))
        0.875
    """
    pairs = int(positives.sum()) * int(negatives.sum())
    if not pairs:
        return float("nan")
    if 2 * pairs < _INT64:
        below_each = negatives.cumsum(dim=0) - negatives
        return int((positives * (2 * below_each + negatives)).sum()) / (2 * pairs)
    # Python integers: billions of pixels give more pairs than int64 can count.
    below, twice_won = 0, 0
    for num_positives, num_negatives in zip(positives.tolist(), negatives.tolist(), strict=True):
        twice_won += num_positives * (2 * below + num_negatives)
        below += num_negatives
    return twice_won / (2 * pairs)


def fpr_from_counts(positives: Tensor, negatives: Tensor, tpr: float = 0.95) -> float:
    """Return the FPR at `tpr` from the numbers of positives and negatives per score, in ascending order.

    Examples:
        >>> fpr_from_counts(torch.ones(100, dtype=torch.int64), torch.cat([torch.ones(10), torch.zeros(90)]).long())
        0.5
    """
    if not 0 < tpr <= 1:
        raise ConfigurationError(f"Expected `tpr` to be above 0 and at most 1, but got {tpr}.")
    if not positives.sum() or not negatives.sum():
        return float("nan")
    occurring = (positives + negatives) > 0
    positives, negatives = positives[occurring], negatives[occurring]
    if len(positives) == 1:
        return 1.0
    true_rate, false_rate = _roc_rates(positives), _roc_rates(negatives)
    after = int(torch.searchsorted(true_rate, tpr))
    (low, high), (start, end) = (rate[after - 1 : after + 1].tolist() for rate in (true_rate, false_rate))
    return float(start + (end - start) * ((tpr - low) / (high - low)))


def average_precision_from_counts(positives: Tensor, negatives: Tensor) -> float:
    """Return the average precision from the numbers of positives and negatives per score, in ascending order.

    Examples:
        >>> average_precision_from_counts(torch.tensor([0, 1, 0, 1]), torch.tensor([1, 0, 1, 0]))
        0.8333333333333333
    """
    if not positives.sum() or not negatives.sum():
        return float("nan")
    found, wrong = positives.flip(0).cumsum(dim=0), negatives.flip(0).cumsum(dim=0)
    precision = found.double() / (found + wrong).clamp(min=1)
    return float((precision * positives.flip(0)).sum() / found[-1])


def counts_by_score(positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of positives and negatives per occurring score, in ascending order."""
    sides = [side.flatten().double() for side in (positives, negatives)]
    scores = torch.cat(sides)
    if scores.isnan().any():
        raise InputError("Expected scores that can be ordered, but some are NaN. Drop these samples first.")
    values, inverse = torch.unique(scores, return_inverse=True)
    first, second = inverse.split([len(side) for side in sides])
    return torch.bincount(first, minlength=len(values)), torch.bincount(second, minlength=len(values))


def _roc_rates(counts: Tensor) -> Tensor:
    """Return the accepted share at every threshold, from the strictest."""
    accepted = counts.flip(0).cumsum(dim=0)
    return torch.cat((accepted.new_zeros(1), accepted)).double() / accepted[-1]
