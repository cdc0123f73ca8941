"""A counter-based random number generator with one stream per image."""

import hashlib
import math

import torch
from torch import Tensor

__all__ = ["CounterRNG", "image_keys"]

# Constants of the SplitMix64 finalizer. torch has no uint64 arithmetic, so they are written as signed numbers.
_INCREMENT = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


class CounterRNG:
    """Counter-based random number generator with one independent stream per image.

    Every number is a hash of the image's key and a counter, so an image gets the same numbers alone, in any batch and
    on any device.

    Args:
        keys: One 64-bit key per image, (N,).
    """

    def __init__(self, keys: Tensor) -> None:
        self._keys = keys
        self._used = 0

    @property
    def device(self) -> torch.device:
        """Device of the random numbers."""
        return self._keys.device

    def __len__(self) -> int:
        return len(self._keys)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return uniform numbers in the open interval (low, high), of shape (N, *shape)."""
        count = math.prod(shape)
        counter = torch.arange(self._used + 1, self._used + count + 1, device=self._keys.device)
        self._used += count
        bits = _shift_right(_mix(self._keys.unsqueeze(1) + counter * _INCREMENT), 40)
        unit = (bits.to(torch.float32) + 0.5) * 2.0**-24
        return (low + (high - low) * unit).view(len(self._keys), *shape)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers of shape (N, *shape)."""
        radius = torch.sqrt(-2.0 * torch.log(self.uniform(*shape)))
        return radius * torch.cos(2.0 * math.pi * self.uniform(*shape))

    def integers(self, *shape: int, low: int, high: int) -> Tensor:
        """Return integers from `low` to `high` − 1, of shape (N, *shape)."""
        return low + (self.uniform(*shape) * (high - low)).to(torch.int64).clamp(max=high - low - 1)


def image_keys(dataset: str, corruption: str, severity: int, indices: Tensor) -> Tensor:
    """Return a 64-bit key per image: a hash of data set, corruption, severity and index."""
    name = f"{dataset}/{corruption}/{severity}".encode()
    start = int.from_bytes(hashlib.sha256(name).digest()[:8], "little", signed=True)
    return _mix(torch.full_like(indices, start) + (indices + 1) * _INCREMENT)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * _FIRST
    z = (z ^ _shift_right(z, 27)) * _SECOND
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, positions: int) -> Tensor:
    """Shift right logically; `>>` on signed integers shifts arithmetically."""
    return (z >> positions) & ((1 << (64 - positions)) - 1)
