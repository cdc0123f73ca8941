"""How well a score tells positives from negatives. Higher means more positive here: negate a novelty first."""

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError, InputError

__all__ = ["auroc", "auroc_of_counts", "fpr_at_tpr", "fpr_of_counts"]


def auroc(positives: Tensor, negatives: Tensor) -> float:
    """The probability that a positive outscores a negative, a tie counting half; exact.

    Args:
        positives: Scores of the positives, of any shape.
        negatives: Scores of the negatives, of any shape.

    Examples:
        >>> auroc(torch.tensor([0.9, 0.5]), torch.tensor([0.5, 0.1]))
        0.875
    """
    return auroc_of_counts(*_counts_by_score(positives, negatives))


def fpr_at_tpr(positives: Tensor, negatives: Tensor, tpr: float = 0.95) -> float:
    """The share of negatives accepted by the threshold that accepts the share `tpr` of positives.

    Scores at or above the threshold are accepted. Of several thresholds that accept exactly `tpr` the strictest counts.
    Where tied scores leave none, the share is interpolated linearly between the neighbouring points of the ROC curve; a
    constant score has no points to go between and accepts everything.

    Args:
        positives: Scores of the positives, of any shape.
        negatives: Scores of the negatives, of any shape.
        tpr: Share of positives to accept, in (0, 1].

    Examples:
        >>> fpr_at_tpr(torch.arange(100.0), torch.arange(10.0))
        0.5
    """
    return fpr_of_counts(*_counts_by_score(positives, negatives), tpr)


def auroc_of_counts(accepted: Tensor, mistaken: Tensor) -> float:
    """`auroc` from how many positives and how many negatives have each score, from the lowest.

    Examples:
        >>> auroc_of_counts(torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0]))
        0.875
    """
    pairs = int(accepted.sum()) * int(mistaken.sum())
    if not pairs:
        return float("nan")
    # Python's integers: billions of pixels make more pairs than 64 bits can count.
    below, twice_won = 0, 0
    for right, wrong in zip(accepted.tolist(), mistaken.tolist(), strict=True):
        twice_won += right * (2 * below + wrong)
        below += wrong
    return twice_won / (2 * pairs)


def fpr_of_counts(accepted: Tensor, mistaken: Tensor, tpr: float = 0.95) -> float:
    """`fpr_at_tpr` from how many positives and how many negatives have each score, from the lowest.

    Examples:
        >>> fpr_of_counts(torch.ones(100, dtype=torch.int64), torch.cat([torch.ones(10), torch.zeros(90)]).long())
        0.5
    """
    if not 0 < tpr <= 1:
        raise ConfigurationError(f"Expected `tpr` to be above 0 and at most 1, but got {tpr}.")
    if not accepted.sum() or not mistaken.sum():
        return float("nan")
    there = (accepted + mistaken) > 0
    accepted, mistaken = accepted[there], mistaken[there]
    if len(accepted) == 1:
        return 1.0
    true_rate, false_rate = (_rate_as_the_threshold_falls(counts) for counts in (accepted, mistaken))
    after = int(torch.searchsorted(true_rate, tpr))
    (low, high), (start, end) = (rate[after - 1 : after + 1].tolist() for rate in (true_rate, false_rate))
    return float(start + (end - start) * ((tpr - low) / (high - low)))


def _counts_by_score(positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """How many positives, and how many negatives, have each of the scores that occur, from the lowest."""
    sides = [side.flatten().double() for side in (positives, negatives)]
    scores = torch.cat(sides)
    if scores.isnan().any():
        raise InputError("Expected scores that can be ordered, but some are NaN. Leave those samples out.")
    values, place = torch.unique(scores, return_inverse=True)
    of_positives, of_negatives = place.split([len(side) for side in sides])
    return torch.bincount(of_positives, minlength=len(values)), torch.bincount(of_negatives, minlength=len(values))


def _rate_as_the_threshold_falls(counts: Tensor) -> Tensor:
    reached = counts.flip(0).cumsum(dim=0)
    return torch.cat((reached.new_zeros(1), reached)).double() / reached[-1]
