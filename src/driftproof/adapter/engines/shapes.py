"""Which shapes of batches come often enough to prepare for."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

__all__ = ["MOST_SHAPES", "Shapes", "shape_key"]

MOST_SHAPES = 4
_REMEMBERED = 64

Key = tuple[Any, ...]


class Shapes:
    """Counts batches by shape, and says of which shape the next one is worth an effort.

    A step that is recorded or compiled holds for one shape. The first batches of a shape run without, and after
    a few shapes no further one is prepared for: memory and patience are finite.

    Args:
        after: How many batches of a shape run without.
    """

    def __init__(self, after: int) -> None:
        self._after = after
        self._met: Counter[Key] = Counter()
        self._chosen: set[Key] = set()

    def meet(self, key: Key) -> None:
        """A batch of this shape came."""
        if len(self._met) >= _REMEMBERED:
            self._met.clear()
        self._met[key] += 1

    def worth(self, key: Key) -> bool:
        """Whether to prepare for this shape, or whether that was done."""
        if key not in self._chosen and self._met[key] >= self._after and len(self._chosen) < MOST_SHAPES:
            self._chosen.add(key)
        return key in self._chosen

    def forget(self) -> None:
        """Begin again."""
        self._met.clear()
        self._chosen.clear()


def shape_key(images: Tensor) -> Key:
    """What a recording depends on besides the adapter: the batch's shape and type, and the caller's autocast."""
    kind = images.device.type
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return (tuple(images.shape), images.dtype, cast)
