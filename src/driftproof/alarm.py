"""Detect novel samples and image regions by thresholding novelty scores."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError, InputError

__all__ = ["Alarm", "Event"]

Connectivity = Literal[4, 8]


@dataclass(frozen=True)
class Event:
    """A sample or image region with novelty above the threshold of an `Alarm`.

    Attributes:
        sample: Index of the image in the batch.
        novelty: Largest novelty in the sample or region.
        area: Number of pixels in the region; None for a whole sample.
        box: Bounding box (top, left, bottom, right), the last two exclusive; None for a whole sample.
    """

    sample: int
    novelty: float
    area: int | None = None
    box: tuple[int, int, int, int] | None = None


class Alarm:
    """Returns an event for each sample, or connected pixel region, with novelty above a threshold.

    Args:
        threshold: Novelty above this is an event. For the confidence difference, 0 flags exactly the samples that
            `ConfidenceDifference()` rejects.
        min_area: Ignore regions of fewer pixels.
        connectivity: 4 connects pixels that share an edge, 8 also those that share a corner.

    Examples:
        >>> alarm = Alarm(threshold=0.5)
        >>> alarm(torch.tensor([0.25, 0.75]))
        [Event(sample=1, novelty=0.75, area=None, box=None)]
    """

    def __init__(self, threshold: float = 0.0, *, min_area: int = 1, connectivity: Connectivity = 4) -> None:
        if min_area < 1:
            raise ConfigurationError(f"Expected `min_area` to be at least 1, but got {min_area}.")
        if math.isnan(threshold):
            raise ConfigurationError("Expected `threshold` to be a number, but got NaN. No novelty exceeds NaN.")
        if connectivity not in (4, 8):
            raise ConfigurationError(f"Expected `connectivity` to be 4 or 8, but got {connectivity!r}.")
        self.threshold = threshold
        self.min_area = min_area
        self.connectivity: Connectivity = connectivity

    @classmethod
    def from_false_alarm_rate(
        cls, novelty: Tensor, rate: float, *, min_area: int = 1, connectivity: Connectivity = 4
    ) -> "Alarm":
        """Return an alarm that flags at most a share `rate` of known data.

        Args:
            novelty: Novelty of data of known classes, of any shape.
            rate: Largest share of these values that may exceed the threshold.
            min_area: As in `Alarm`.
            connectivity: As in `Alarm`.

        Examples:
            >>> Alarm.from_false_alarm_rate(torch.arange(100.0), rate=0.1).threshold
            89.0
        """
        if not 0.0 <= rate <= 1.0:
            raise ConfigurationError(f"Expected `rate` to be in 0..1, but got {rate}.")
        ordered = novelty.flatten().sort().values
        if len(ordered) == 0:
            raise InputError("Expected the novelty of at least one sample, but got none.")
        if ordered.isnan().any():
            raise InputError("Expected novelty without NaN, but got some. Leave out skipped batches.")
        allowed = int(rate * len(ordered))
        threshold = float(ordered[len(ordered) - 1 - allowed]) if allowed < len(ordered) else float("-inf")
        return cls(threshold, min_area=min_area, connectivity=connectivity)

    def __call__(self, novelty: Tensor) -> list[Event]:
        """Return the events in the novelty of a batch, such as `adapter.last.novelty`.

        Args:
            novelty: (N,) for samples, or (N, H, W) for pixels.
        """
        if novelty.ndim == 1:
            flagged = (novelty > self.threshold).nonzero().flatten()
            return [
                Event(sample, value) for sample, value in zip(flagged.tolist(), novelty[flagged].tolist(), strict=True)
            ]
        if novelty.ndim == 3:
            return self._find_regions(novelty)
        raise InputError(f"Expected novelty of shape (N,) or (N, H, W), but got {tuple(novelty.shape)}.")

    def _find_regions(self, novelty: Tensor) -> list[Event]:
        labels = label_regions(novelty > self.threshold, connectivity=self.connectivity)
        coordinates = (labels >= 0).nonzero()
        _, region, areas = torch.unique(labels[labels >= 0], return_inverse=True, return_counts=True)
        index = region.unsqueeze(1).expand(-1, 3)
        empty = coordinates.new_zeros(len(areas), 3)
        first = empty.scatter_reduce(0, index, coordinates, "amin", include_self=False)
        last = empty.scatter_reduce(0, index, coordinates, "amax", include_self=False)
        peak = novelty.new_zeros(len(areas)).scatter_reduce_(
            0, region, novelty[labels >= 0], "amax", include_self=False
        )
        columns = (peak.tolist(), areas.tolist(), first.tolist(), (last + 1).tolist())
        return [
            Event(sample, value, area, (top, left, bottom, right))
            for value, area, (sample, top, left), (_, bottom, right) in zip(*columns, strict=True)
            if area >= self.min_area
        ]


def label_regions(mask: Tensor, *, connectivity: Connectivity = 4) -> Tensor:
    """Label the connected regions of each mask in a batch, (N, H, W).

    Returns the same shape: the label of a region is the smallest flat index in it, outside it is −1. Regions are merged
    in parallel: every root is linked to its smallest neighbor, then links are followed to their ends. The number of
    rounds grows with the logarithm of the region's length.
    """
    index = torch.arange(mask.numel(), device=mask.device).view(mask.shape)
    neighbors = [(index[:, :, :-1], index[:, :, 1:]), (index[:, :-1], index[:, 1:])]
    if connectivity == 8:
        neighbors += [(index[:, :-1, :-1], index[:, 1:, 1:]), (index[:, :-1, 1:], index[:, 1:, :-1])]
    first, second = (torch.cat([side.flatten() for side in ends]) for ends in zip(*neighbors, strict=True))
    inside = mask.flatten()
    edges = inside[first] & inside[second]
    first, second = first[edges], second[edges]
    root = index.flatten()
    while len(first):
        low, high = torch.minimum(root[first], root[second]), torch.maximum(root[first], root[second])
        unmerged = low != high
        first, second = first[unmerged], second[unmerged]
        root = root.scatter_reduce(0, high[unmerged], low[unmerged], "amin")
        while not torch.equal(root, parent := root[root]):
            root = parent
    return torch.where(inside, root, -1).view(mask.shape)
