"""Which batch shapes come often enough to capture or compile for."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

__all__ = ["MAX_SHAPES", "ShapeKey", "ShapeTracker", "shape_key"]

MAX_SHAPES = 4
_MAX_COUNTED = 64

ShapeKey = tuple[Any, ...]


class ShapeTracker:
    """Counts batches by shape and decides for which ones a captured or compiled step pays off.

    Such a step holds for one shape. The first batches of a shape run without, and after a few shapes no further one is
    captured: memory and patience are finite.

    Args:
        after: How many batches of a shape run without.
    """

    def __init__(self, after: int) -> None:
        self._after = after
        self._counts: Counter[ShapeKey] = Counter()
        self._chosen: set[ShapeKey] = set()

    def record(self, key: ShapeKey) -> None:
        """Count a batch of this shape."""
        if len(self._counts) >= _MAX_COUNTED:
            self._counts.clear()
        self._counts[key] += 1

    def should_capture(self, key: ShapeKey) -> bool:
        """Whether the next batch of this shape is captured or compiled, or replayed."""
        if key not in self._chosen and self._counts[key] >= self._after and len(self._chosen) < MAX_SHAPES:
            self._chosen.add(key)
        return key in self._chosen


def shape_key(images: Tensor) -> ShapeKey:
    """What a captured step depends on besides the state: the batch's shape and dtype, and the caller's autocast."""
    kind = images.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return (tuple(images.shape), images.dtype, autocast)
