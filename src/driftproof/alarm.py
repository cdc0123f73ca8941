"""Novelty turned into events, without labels."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError, InputError

__all__ = ["Alarm", "Event"]


@dataclass(frozen=True)
class Event:
    """Something the model has not seen before.

    Attributes:
        sample: Index of the image in the batch.
        novelty: The largest novelty of the sample or region.
        area: Pixels in the region; None for a whole sample.
        box: (top, left, bottom, right) of the region, the last two exclusive; None for a whole sample.
    """

    sample: int
    novelty: float
    area: int | None = None
    box: tuple[int, int, int, int] | None = None


class Alarm:
    """Raises an event for every sample, or connected region of pixels, whose novelty exceeds a threshold.

    Args:
        threshold: Novelty above this is an event. With the confidence difference, 0 alarms on exactly the samples that
            `ConfidenceDifference()` rejects.
        min_area: Regions of fewer pixels are ignored.
        diagonal: Whether pixels that touch at a corner are connected.

    Examples:
        >>> alarm = Alarm(threshold=0.5)
        >>> alarm(torch.tensor([0.25, 0.75]))
        [Event(sample=1, novelty=0.75, area=None, box=None)]
    """

    def __init__(self, threshold: float = 0.0, *, min_area: int = 1, diagonal: bool = False) -> None:
        if min_area < 1:
            raise ConfigurationError(f"Expected `min_area` to be at least 1, but got {min_area}.")
        if math.isnan(threshold):
            raise ConfigurationError("Expected `threshold` to be a number, but got NaN, which nothing exceeds.")
        self.threshold = threshold
        self.min_area = min_area
        self.diagonal = diagonal

    @classmethod
    def from_false_alarm_rate(
        cls, novelty: Tensor, rate: float, *, min_area: int = 1, diagonal: bool = False
    ) -> "Alarm":
        """An alarm that stays below `rate` on data known to be ordinary, given that data's novelty.

        Examples:
            >>> Alarm.from_false_alarm_rate(torch.arange(100.0), rate=0.1).threshold
            89.0
        """
        if not 0.0 <= rate <= 1.0:
            raise ConfigurationError(f"Expected `rate` to be in 0..1, but got {rate}.")
        ordered = novelty.flatten().sort().values
        if len(ordered) == 0:
            raise InputError("Expected the novelty of at least one ordinary sample, but got none.")
        if ordered.isnan().any():
            raise InputError("Expected novelty without NaN, but got some. Leave out batches that were skipped.")
        allowed = int(rate * len(ordered))
        threshold = float(ordered[len(ordered) - 1 - allowed]) if allowed < len(ordered) else float("-inf")
        return cls(threshold, min_area=min_area, diagonal=diagonal)

    def __call__(self, novelty: Tensor) -> list[Event]:
        """The events in a batch's novelty, (N,) for samples or (N, H, W) for pixels; `adapter.last.novelty` fits."""
        if novelty.ndim == 1:
            alarming = (novelty > self.threshold).nonzero().flatten()
            return [
                Event(sample, value)
                for sample, value in zip(alarming.tolist(), novelty[alarming].tolist(), strict=True)
            ]
        if novelty.ndim == 3:
            return self._regions(novelty)
        raise InputError(f"Expected novelty of shape (N,) or (N, H, W), but got {tuple(novelty.shape)}.")

    def _regions(self, novelty: Tensor) -> list[Event]:
        labels = connected_regions(novelty > self.threshold, diagonal=self.diagonal)
        places = (labels >= 0).nonzero()
        _, region, areas = torch.unique(labels[labels >= 0], return_inverse=True, return_counts=True)
        spread = region.unsqueeze(1).expand(-1, 3)
        first = places.new_zeros(len(areas), 3).scatter_reduce_(0, spread, places, "amin", include_self=False)
        last = places.new_zeros(len(areas), 3).scatter_reduce_(0, spread, places, "amax", include_self=False)
        peak = novelty.new_zeros(len(areas)).scatter_reduce_(
            0, region, novelty[labels >= 0], "amax", include_self=False
        )
        columns = (peak.tolist(), areas.tolist(), first.tolist(), (last + 1).tolist())
        return [
            Event(sample, value, area, (top, left, bottom, right))
            for value, area, (sample, top, left), (_, bottom, right) in zip(*columns, strict=True)
            if area >= self.min_area
        ]


def connected_regions(mask: Tensor, *, diagonal: bool = False) -> Tensor:
    """Number the connected regions of each image in a batch of masks, (N, H, W).

    Returns the same shape: pixels of one region carry the same number, the smallest flat index in it; pixels outside
    −1. Regions are joined in parallel (hook every root to its smallest neighbour, then follow the links to their ends),
    which takes a number of rounds that grows with the logarithm of the region's length.
    """
    index = torch.arange(mask.numel(), device=mask.device).view(mask.shape)
    sides = [(index[:, :, :-1], index[:, :, 1:]), (index[:, :-1], index[:, 1:])]
    if diagonal:
        sides += [(index[:, :-1, :-1], index[:, 1:, 1:]), (index[:, :-1, 1:], index[:, 1:, :-1])]
    here, there = (torch.cat([side.flatten() for side in ends]) for ends in zip(*sides, strict=True))
    inside = mask.flatten()
    touching = inside[here] & inside[there]
    here, there = here[touching], there[touching]
    root = index.flatten()
    while len(here):
        low, high = torch.minimum(root[here], root[there]), torch.maximum(root[here], root[there])
        apart = low != high
        here, there = here[apart], there[apart]
        root = root.scatter_reduce(0, high[apart], low[apart], "amin")
        while not torch.equal(root, further := root[root]):
            root = further
    return torch.where(inside, root, -1).view(mask.shape)
