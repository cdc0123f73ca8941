"""Tell the scores of known images from those of unknown ones in a stream, by the shape that a shift gives them."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["KnownScores", "fit_known_scores"]

_MEDIANS, _SPREADS = (-0.6, 1.35, 0.1), (0.9, 1.05, 1.2, 1.4, 1.7, 1.9)
_UNKNOWN = tuple((mean, spread) for mean in (2.0, 2.2, 2.4) for spread in (0.4, 0.5))
_UPPER, _NARROWS = 1.07, 0.25
"""Scale of the upper half, and how much it narrows with the median: scores cannot move up without end."""

_LINEAR, _BENDS = 1.485, 0.232
_OFFSET, _SLOPE = 0.6, 0.685
"""The line that the quantiles of known images follow from about z = 1.1 to z = 2.3, where it is below the bend."""

_LOWER, _WIDENS, _WIDTH = 1.02, 0.2, 0.15
"""Scale of the lower half, how much it widens with the median, and how exact that is."""

_SPREAD_PRIOR, _MEDIAN_PRIOR, _COUNT = 12.0, 7.0, 1000.0
_ITERATIONS, _FEW = 8, 0.02


class KnownScores(NamedTuple):
    """Scores of known images, as normal scores of the calibration.

    Attributes:
        median: Their median; 0 without a shift.
        scale: The scale of their upper half.
        unknown: The share of unknown images in the stream.
        gain: How much more likely this share makes a thousand scores than a share of 0.02, in nats.
    """

    median: float
    scale: float
    unknown: float
    gain: float

    def quantile(self, rate: float) -> float:
        """Return the normal score that a share `rate` of the known images exceeds; at most a half."""
        z = -float(torch.special.ndtri(torch.tensor(rate, dtype=torch.float64)))
        z = min(z, _LINEAR / (2 * _BENDS))  # where the bend ends
        return self.median + self.scale * min(_LINEAR * z - _BENDS * z**2, _OFFSET + _SLOPE * z)


def fit_known_scores(x: Tensor) -> KnownScores:
    """Fit known images and a free share of unknown ones to normal scores.

    Without a shift, normal scores of known images are standard normal. A shift moves their median m up, widens the
    lower half to a scale of about 1.02 + 0.2 m, and bends the upper half, m + (1.07 − 0.25 m) (1.485 z − 0.232 z²) at a
    standard normal z ≥ 0: hard images look as novel as unknown ones, but hardly more so. Unknown images are normal
    around 2.0 to 2.4. The best of a grid of such mixtures is taken; a small shift is preferred to a large one. Its
    quantiles are read from a line where that is lower than the bend, since a part of the hard images counts as unknown.

    The constants were chosen with WRN-40-2 on CIFAR-10 and CIFAR-100, with the held-out corruptions and pairs of them.
    """
    edges, known, unknown, medians, penalties = _make_grid()
    counts = torch.bincount(torch.bucketize(x, edges), minlength=len(edges) + 1).to(known.dtype)
    total = counts.sum()
    share = torch.full((len(known), len(unknown), 1), 0.3, dtype=known.dtype)
    known, unknown = known.unsqueeze(1), unknown.unsqueeze(0)
    for _ in range(_ITERATIONS):
        share = ((share * unknown / torch.lerp(known, unknown, share)) @ counts).unsqueeze(-1) / total
    scale = (_COUNT / total).clamp(max=1.0)
    likelihood = torch.lerp(known, unknown, share).log() @ counts * scale - penalties.unsqueeze(1)
    with_few = torch.lerp(known, unknown, _FEW).log() @ counts * scale - penalties.unsqueeze(1)
    best = int(likelihood.argmax())
    median, gain = float(medians[best // share.shape[1]]), float(likelihood.max() - with_few.max())
    return KnownScores(median, _UPPER - _NARROWS * median, float(share.flatten()[best]), gain)


@cache
def _make_grid() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Inner edges of bins, probabilities of known and of unknown scores in them, medians, and penalties."""
    edges = torch.arange(-3.5, 3.55, 0.1, dtype=torch.float64)
    medians, spreads = (
        each.flatten().unsqueeze(1)
        for each in torch.meshgrid(
            torch.arange(*_MEDIANS, dtype=torch.float64), torch.tensor(_SPREADS, dtype=torch.float64), indexing="ij"
        )
    )
    above = ((edges - medians) / (_UPPER - _NARROWS * medians)).clamp(min=0.0)
    upper = (_LINEAR - (_LINEAR**2 - 4 * _BENDS * above).clamp(min=0.0).sqrt()) / (2 * _BENDS)
    known = torch.special.ndtr(torch.where(edges < medians, (edges - medians) / spreads, upper))
    unknown = torch.stack([torch.special.ndtr((edges - mean) / spread) for mean, spread in _UNKNOWN])
    offset = (spreads - _LOWER - _WIDENS * medians) / _WIDTH
    penalties = _SPREAD_PRIOR * offset**2 + _MEDIAN_PRIOR * medians.clamp(min=0.0) ** 2
    return edges, _to_bins(known), _to_bins(unknown), medians.squeeze(1), penalties.squeeze(1)


def _to_bins(cumulative: Tensor) -> Tensor:
    ends = [torch.zeros_like(cumulative[:, :1]), torch.ones_like(cumulative[:, :1])]
    return torch.cat([ends[0], cumulative, ends[1]], dim=1).diff(dim=1).clamp(min=1e-7)
