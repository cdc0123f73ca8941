"""Follow the upper quantile of the scores of known images in a stream with unknown ones."""

import math

import torch
from torch import Tensor

from driftproof.alarm.known_mixture import fit_known_scores

__all__ = ["KnownQuantile"]

_FEW_UNKNOWN, _MANY_UNKNOWN = 0.05, 0.35
"""Shares of unknown images. Below the first, which a fit also finds where there are none, all scores count as known.

From the second on, the fitted quantile of the known ones is taken.
"""

_MUCH_GAIN = 30.0
"""Gain of likelihood from which on the fitted share of unknown images is believed; a shift alone gains up to 20."""

_ENOUGH = 1000
"""Scores that make a good fit; with fewer, the quantile of all scores has a part."""

_SATURATED = 1.9
"""Median normal score from which on the calibration says nothing about the stream."""


class KnownQuantile:
    """Estimates, batch by batch, the score that a share `rate` of the known images exceeds.

    Scores become normal scores: their ranks in the calibration. `fit_known_scores` tells known from unknown images
    among the latest ones by the shape that a shift gives to known scores, and its quantile is the estimate. With few
    unknown images, where they explain little, or where most scores are beyond the calibration's, the estimate is the
    quantile of the latest scores; in between, and while the window holds fewer than 1,000 scores, it is between both. A
    batch distributed unlike the latest scores starts the window anew.

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
        share = self.rate
        if self._calibration is not None:
            share = self._find_share_above(_normal_scores(self._latest, self._calibration))
        scores = self._latest.sort(descending=True).values
        return float(scores[min(int(share * len(scores) + 1e-9), len(scores) - 1)])

    def _find_share_above(self, x: Tensor) -> float:
        """The share of all scores that are above the quantile of the known ones."""
        if self.rate > 0.5 or float(x.median()) > _SATURATED:
            return self.rate
        known = fit_known_scores(x)
        by_share = (known.unknown - _FEW_UNKNOWN) / (_MANY_UNKNOWN - _FEW_UNKNOWN)
        trust = min(1.0, by_share, known.gain / _MUCH_GAIN) * min(1.0, len(x) / _ENOUGH)
        if trust <= 0:
            return self.rate
        of_all = float(x.sort(descending=True).values[int(self.rate * len(x))])
        limit = of_all + trust * (known.quantile(self.rate) - of_all)
        return float((x > limit).double().mean())


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


def _differ(first: Tensor, second: Tensor) -> bool:
    """Whether a Kolmogorov-Smirnov test tells two samples apart, at a level of 0.001."""
    if min(len(first), len(second)) < 50:
        return False
    values = torch.cat([first, second])
    shares = [torch.searchsorted(part.sort().values, values, right=True) / len(part) for part in (first, second)]
    limit = 1.95 * math.sqrt(1 / len(first) + 1 / len(second))
    return float((shares[0] - shares[1]).abs().max()) > limit
