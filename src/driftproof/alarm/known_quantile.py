"""Follow the upper quantile of the scores of known images in a stream with unknown ones."""

import math

import torch
from torch import Tensor

__all__ = ["KnownQuantile"]

_MIN_SPREAD = 1.15
"""Smallest standard deviation of familiar scores: a shift widens the calibration's, which is 1."""

_MIN_GAP = 1.0
"""Smallest distance between the means of novel and familiar scores; nearer ones are one group."""

_HARD = 1.28
"""Calibrated score above which familiar images look novel: a tenth of them without a shift."""

_ITERATIONS = 60


class KnownQuantile:
    """Estimates, batch by batch, the score that a share `rate` of the known images exceeds.

    Scores become normal scores: their ranks in the calibration. A mixture of two normal distributions splits the latest
    ones into familiar and novel images. Some known images look novel as well, the more the further the familiar
    ones have moved. Novel images beyond that share count as unknown: the quantile weights them less. A batch
    distributed unlike the latest scores starts the window anew.

    Args:
        rate: Share of known images above the quantile.
        window: Number of latest scores to keep.
        calibration: Scores of known images; None takes the first `window` scores of the stream.
    """

    def __init__(self, rate: float, window: int, calibration: Tensor | None = None) -> None:
        self.rate = rate
        self.window = window
        self._calibration = None if calibration is None else _finite_scores(calibration).sort().values
        self._latest = torch.empty(0, dtype=torch.float64)
        if self._calibration is not None:
            self._latest = _draw_evenly(self._calibration, window)

    def update(self, scores: Tensor) -> None:
        """Add the scores of a batch to the window; scores that are not finite are left out.

        Args:
            scores: (N,) for samples, or (N, H, W) for pixels, of which a fifth of a window is drawn evenly.
        """
        scores = _finite_scores(_draw_evenly(scores.flatten(), self.window if scores.ndim == 1 else self.window // 5))
        if _differ(self._latest, scores):
            self._latest = scores[:0]
        self._latest = torch.cat([self._latest, scores])[-self.window :]
        if self._calibration is None and len(self._latest) == self.window:
            self._calibration = self._latest.sort().values

    def compute(self) -> float:
        """Return the smallest score of the window that at most a share `rate` of its known images exceeds."""
        if len(self._latest) == 0:
            return math.inf
        weights = torch.ones_like(self._latest)
        if self._calibration is not None:
            weights = _weigh_known(_normal_scores(self._latest, self._calibration))
        scores, order = self._latest.sort(descending=True)
        above = weights[order].cumsum(0) / weights.sum()
        return float(scores[(above <= self.rate + 1e-9).sum().clamp(max=len(scores) - 1)])


def _finite_scores(scores: Tensor) -> Tensor:
    scores = scores.detach().flatten().to("cpu", torch.float64)
    return scores[scores.isfinite()]


def _draw_evenly(scores: Tensor, most: int) -> Tensor:
    if len(scores) <= most:
        return scores
    index = torch.linspace(0, len(scores) - 1, max(1, most), dtype=torch.float64)
    return scores[index.round().long().to(scores.device)]


def _normal_scores(scores: Tensor, calibration: Tensor) -> Tensor:
    ranks = torch.searchsorted(calibration, scores) + torch.searchsorted(calibration, scores, right=True)
    normal: Tensor = torch.special.ndtri((ranks + 1) / (2 * len(calibration) + 2))
    return normal


def _weigh_known(x: Tensor) -> Tensor:
    """Return a weight for each normal score, so that the weighted scores are distributed as known images' are."""
    mean = x.quantile(torch.tensor([0.25, 0.9], dtype=x.dtype))
    spread, share = x.new_tensor([_MIN_SPREAD, 0.5]), x.new_tensor([0.7, 0.3])
    smallest = x.new_tensor([_MIN_SPREAD, 0.3])
    for _ in range(_ITERATIONS):
        member = _split(x, mean, spread, share)
        count = member.sum(0).clamp_min(1e-6)
        share, mean = count / count.sum(), (member * x.unsqueeze(1)).sum(0) / count
        spread = ((member * (x.unsqueeze(1) - mean).square()).sum(0) / count).sqrt().maximum(smallest)
    hard = torch.special.ndtr(mean[0] - _HARD)
    if mean[1] - mean[0] < _MIN_GAP or share[1] <= hard:
        return torch.ones_like(x)
    member = _split(x.minimum(mean[1]), mean, spread, share)  # the wider group would claim the largest scores
    return member @ (torch.stack([1 - hard, hard]) / share)


def _split(x: Tensor, mean: Tensor, spread: Tensor, share: Tensor) -> Tensor:
    distance = (x.unsqueeze(1) - mean) / spread
    return (share.log() - spread.log() - distance.square() / 2).softmax(dim=1)


def _differ(first: Tensor, second: Tensor) -> bool:
    """Whether a Kolmogorov-Smirnov test tells two samples apart, at a level of 0.001."""
    if min(len(first), len(second)) < 50:
        return False
    values = torch.cat([first, second])
    shares = [torch.searchsorted(part.sort().values, values, right=True) / len(part) for part in (first, second)]
    limit = 1.95 * math.sqrt(1 / len(first) + 1 / len(second))
    return float((shares[0] - shares[1]).abs().max()) > limit
