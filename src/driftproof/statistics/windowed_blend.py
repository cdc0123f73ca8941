"""A mixture of source statistics and those of the latest images."""

import math

from torch import Tensor

from driftproof.distributed import Distributed
from driftproof.errors import ConfigurationError
from driftproof.statistics.blend import InterpolatedStatistics

__all__ = ["WindowedBlend"]

_PIXELS = 32 * 32


class WindowedBlend(InterpolatedStatistics):
    """As `Blend`, with running statistics for batches that are too small to have good ones.

    Batches of fewer than `window` images enter running statistics that start from the source and remember about so many
    images. They include the variance between batches: that of single images would be too small. In a layer with more
    than 32 × 32 positions an image counts for more. Larger batches count by themselves, exactly as in `Blend`.

    Args:
        alpha: α in [0, 1], the share of the stream.
        window: How many images make good statistics.

    Examples:
        >>> WindowedBlend(0.3)
        WindowedBlend(alpha=0.3, window=128)
    """

    pools_variance = True

    def __init__(self, alpha: float, window: int = 128) -> None:
        super().__init__(momentum=1.0, start="source")
        if not 0.0 <= alpha <= 1.0:
            raise ConfigurationError(f"Expected `alpha` to be in 0..1, but got {alpha}.")
        if window < 1:
            raise ConfigurationError(f"Expected `window` to be at least 1, but got {window}.")
        self.alpha = alpha
        self.window = window

    @property
    def stream_share(self) -> float:
        """The share of the stream."""
        return self.alpha

    def alpha_for(self, index: int) -> float:
        """The same everywhere."""
        return self.alpha

    def momentum_for(self, x: Tensor, distributed: Distributed) -> float:
        """The number of images over `window`, at most 1."""
        images = distributed.global_count(len(x)) // distributed.copies
        return min(1.0, images * max(1.0, math.prod(x.shape[2:]) / _PIXELS) / self.window)
