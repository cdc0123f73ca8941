"""A mixture of source statistics and those of the latest images."""

import math
from numbers import Real

from torch import Tensor

from driftproof.distributed import Distributed
from driftproof.errors import ConfigurationError
from driftproof.network import BatchNormHook
from driftproof.norms import BatchNorm
from driftproof.statistics.blend import InterpolatedStatistics

__all__ = ["WindowedBlend", "check_shares"]

_PIXELS = 32 * 32


class WindowedBlend(InterpolatedStatistics):
    """As `Blend`, with running statistics for batches that are too small to have good ones.

    Batches of fewer than `window` images enter running statistics that start from the source and remember about so many
    images. They include the variance between batches: that of single images would be too small. In a layer with more
    than 32 × 32 positions an image counts for more. Larger batches count by themselves, exactly as in `Blend`.

    Args:
        alpha: α in [0, 1], the share of the stream. A pair is that of the first and of the last batch norm, in the
            order of the model's modules; between them it changes linearly. A network with one batch norm uses the
            first.
        window: How many images make good statistics.

    Examples:
        >>> WindowedBlend(0.3)
        WindowedBlend(alpha=0.3, window=128)
        >>> WindowedBlend((0.1, 0.5))
        WindowedBlend(alpha=(0.1, 0.5), window=128)
    """

    pools_variance = True

    def __init__(self, alpha: float | tuple[float, float], window: int = 128) -> None:
        super().__init__(momentum=1.0, start="source")
        if window < 1:
            raise ConfigurationError(f"Expected `window` to be at least 1, but got {window}.")
        self.alpha = check_shares("alpha", alpha)
        self.window = window
        self._first, self._last = self.alpha if isinstance(self.alpha, tuple) else (self.alpha, self.alpha)
        self._layers = 1

    def alpha_for(self, index: int) -> float:
        """The share of one layer; a pair needs the hooks of all layers, which say how many there are."""
        return self._first + (self._last - self._first) * index / max(1, self._layers - 1)

    def make_hook(self, index: int, name: str, layer: BatchNorm) -> BatchNormHook:
        """A hook that reads its share at every pass; the last hook of a network knows the number of layers."""
        self._layers = index + 1
        return super().make_hook(index, name, layer)

    def momentum_for(self, x: Tensor, distributed: Distributed) -> float:
        """The number of images over `window`, at most 1."""
        images = distributed.global_count(len(x)) // distributed.copies
        return min(1.0, images * max(1.0, math.prod(x.shape[2:]) / _PIXELS) / self.window)


def check_shares(name: str, value: object) -> float | tuple[float, float]:
    """Return a share, or those of the first and the last layer, if they are in 0..1, else raise.

    Args:
        name: The argument's name.
        value: A number, or a pair of numbers.

    Examples:
        >>> check_shares("share", [0.1, 0.5])
        (0.1, 0.5)
        >>> check_shares("share", (0.1, 1.5))
        Traceback (most recent call last):
        driftproof.errors.ConfigurationError: Expected `share` to be in 0..1, or a pair of such numbers, but got \
(0.1, 1.5). Pass a share such as 0.3, or those of the first and the last layer, such as (0.1, 0.5).
    """
    values = tuple(value) if isinstance(value, tuple | list) else (value, value)
    shares = [
        float(one) for one in values if isinstance(one, Real) and not isinstance(one, bool) and 0 <= float(one) <= 1
    ]
    if len(values) != 2 or len(shares) != 2:
        raise ConfigurationError(
            f"Expected `{name}` to be in 0..1, or a pair of such numbers, but got {value!r}. "
            "Pass a share such as 0.3, or those of the first and the last layer, such as (0.1, 0.5)."
        )
    return (shares[0], shares[1]) if isinstance(value, tuple | list) else shares[0]
