"""Measures of classifying known samples and telling unknown ones apart, in one number."""

import math

from torch import Tensor

from driftproof.metrics.ranking import auroc

__all__ = ["h_score", "oscr"]


def oscr(familiarity: Tensor, correct: Tensor, known: Tensor) -> float:
    """Return the area under the open-set classification rate curve, in [0, 1].

    The curve plots the share of known samples that are accepted and correctly classified over the share of unknown
    samples that are accepted, for every threshold of acceptance. Its area is the accuracy times the probability that a
    correctly classified sample is more familiar than an unknown one.

    Args:
        familiarity: Score of each sample, (N,); larger is accepted first. Negate novelty scores.
        correct: Boolean, whether each prediction is correct, (N,); ignored where unknown.
        known: Boolean mask of the known samples, (N,).

    Examples:
        >>> import torch
        >>> known = torch.tensor([True, True, False])
        >>> oscr(torch.tensor([0.9, 0.2, 0.5]), torch.tensor([True, True, False]), known)
        0.5

    Reference:
        Dhamija, Günther, Boult: Reducing Network Agnostophobia. NeurIPS 2018.
    """
    correct = correct & known
    if not known.any() or known.all():
        return math.nan
    if not correct.any():
        return 0.0
    accuracy = int(correct.sum()) / int(known.sum())
    return accuracy * auroc(familiarity[correct], familiarity[~known])


def h_score(accuracy: float, auroc: float) -> float:
    """Return the harmonic mean of accuracy and AUROC, both in [0, 1] or both in percent.

    Over several domains, take the mean of their H-scores: it is not the H-score of the means.

    Examples:
        >>> h_score(0.5, 1.0)
        0.6666666666666666
    """
    total = accuracy + auroc
    return 2 * accuracy * auroc / total if total else total
