"""Two groups of scores on a line: a mixture of two Gaussians, or a threshold.

Scores are (N,), with an optional weight ≥ 0 each; weight 0 leaves one out. Shapes are static and no value is read on
the host, so a step that splits its batch can be captured in a CUDA graph.
"""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["TwoGroups", "fit_mixture", "fit_otsu"]

_LEAST = 1e-6
"""Smallest variance of a group, and what an empty group counts, in units of the scores' range."""


class TwoGroups(NamedTuple):
    """Two groups of scores, the one with the smaller mean first; all but `low` and `width` after min-max scaling.

    Attributes:
        low: The smallest score.
        width: The largest score less the smallest.
        share: The share of the scores in each group, (2,).
        mean: The mean of each group, (2,).
        variance: The variance of each group, (2,).
        cut: Where a cut splits the scores best; the first group goes up to here.
    """

    low: Tensor
    width: Tensor
    share: Tensor
    mean: Tensor
    variance: Tensor
    cut: Tensor

    @property
    def separation(self) -> Tensor:
        """The distance of the means in standard deviations, √(mean variance): Ashman's D."""
        return (self.mean[1] - self.mean[0]) / self.variance.mean().sqrt()

    def first_probability(self, scores: Tensor) -> Tensor:
        """The probability that each score belongs to the first group, if both are Gaussians."""
        unit = (scores - self.low) / self.width
        return _log_densities(unit, self.share, self.mean, self.variance).softmax(dim=0)[0]

    def is_below_cut(self, scores: Tensor) -> Tensor:
        """Whether each score is on the first group's side of the cut."""
        return (scores - self.low) / self.width <= self.cut


def fit_mixture(
    scores: Tensor, weights: Tensor | None = None, *, iterations: int = 16, tolerance: float = 1e-3
) -> TwoGroups:
    """Fit two Gaussians by expectation maximization, from the exact 2-means split.

    As scikit-learn's `GaussianMixture`: iterations that follow the first one to raise the mean log-likelihood by less
    than the tolerance change nothing. They run all the same, since the number of operations is fixed.

    Args:
        scores: What to split, (N,).
        weights: A weight for each score; None is one.
        iterations: How many iterations to run.
        tolerance: The least gain in the mean log-likelihood.

    Examples:
        >>> groups = fit_mixture(torch.tensor([0.1, 0.2, 0.1, 0.8, 0.9, 0.9]))
        >>> groups.first_probability(torch.tensor([0.0, 1.0])).round()
        tensor([1., 0.])
    """
    start = fit_otsu(scores, weights)
    weights = torch.ones_like(scores) if weights is None else weights.to(scores.dtype)
    unit = ((scores - start.low) / start.width).clamp(0.0, 1.0)  # those of weight 0 may be anything
    share, mean, variance = start.share, start.mean, start.variance
    before, done = torch.full_like(start.low, -torch.inf), torch.zeros_like(start.low, dtype=torch.bool)
    for _ in range(iterations):
        densities = _log_densities(unit, share, mean, variance)
        likelihood = (weights * densities.logsumexp(dim=0)).sum() / weights.sum()
        found = _moments(unit, weights, densities.softmax(dim=0))
        share, mean, variance = (torch.where(done, *pair) for pair in zip((share, mean, variance), found, strict=True))
        done = done | ((likelihood - before).abs() < tolerance)
        before = likelihood
    order = mean.argsort(stable=True)
    return start._replace(share=share[order], mean=mean[order], variance=variance[order])


def fit_otsu(scores: Tensor, weights: Tensor | None = None, *, by_size: bool = True) -> TwoGroups:
    """Cut where the variance inside the two groups is smallest: Otsu's threshold, which is the exact 2-means split.

    Args:
        scores: What to split, (N,).
        weights: A weight for each score; None is one.
        by_size: Whether a group's variance counts by its size; else both count the same.

    Examples:
        >>> fit_otsu(torch.tensor([0.0, 0.1, 0.8, 1.0])).cut
        tensor(0.4500)
    """
    weights = torch.ones_like(scores) if weights is None else weights.to(scores.dtype)
    low = scores.where(weights > 0, torch.inf).amin()
    high = scores.where(weights > 0, -torch.inf).amax()
    width = (high - low).clamp(min=torch.finfo(scores.dtype).tiny)
    unit = ((scores - low) / width).clamp(0.0, 1.0)
    ordered, order = unit.where(weights > 0, 1.0).sort()
    cut = _best_cut(ordered, weights[order], by_size=by_size)
    first = (unit <= cut).to(unit.dtype)
    return TwoGroups(low, width, *_moments(unit, weights, torch.stack([first, 1 - first])), cut)


def _best_cut(ordered: Tensor, weights: Tensor, *, by_size: bool) -> Tensor:
    """Halfway between two neighbors of the sorted scores; the last place leaves the second group empty."""
    count = weights.cumsum(0)
    other = count[-1] - count
    # Deviations from the mean: their squares lose fewer digits.
    centered = ordered - (weights * ordered).sum() / count[-1]
    total, squares = (weights * centered).cumsum(0), (weights * centered**2).cumsum(0)
    sides = ((count, total, squares), (other, total[-1] - total, squares[-1] - squares))
    within = torch.stack([square - sum_**2 / n.clamp(min=_LEAST) for n, sum_, square in sides])
    spread = within.sum(dim=0) if by_size else (within / torch.stack([count, other]).clamp(min=_LEAST)).sum(dim=0)
    following = torch.cat([ordered[1:], ordered[-1:]])
    splits = (following > ordered) & (count > 0) & (other > 0)
    best = spread.where(splits, torch.inf).argmin(dim=0, keepdim=True)
    return ((ordered + following) / 2).gather(0, best).squeeze(0)


def _moments(unit: Tensor, weights: Tensor, responsibilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Share, mean and variance of both groups."""
    weighted = weights * responsibilities
    count = weighted.sum(dim=1) + _LEAST
    mean = (weighted * unit).sum(dim=1) / count
    variance = (weighted * (unit - mean[:, None]) ** 2).sum(dim=1) / count + _LEAST
    return count / count.sum(), mean, variance


def _log_densities(unit: Tensor, share: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The logarithm of each Gaussian times its share, (2, …), but for a constant."""
    shape = (2, *([1] * unit.ndim))
    share, mean, variance = share.view(shape), mean.view(shape), variance.view(shape)
    return share.log() - (unit - mean) ** 2 / (2 * variance) - 0.5 * variance.log()
