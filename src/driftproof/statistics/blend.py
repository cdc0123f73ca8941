"""Normalize with a mixture of the batch's statistics and those of training."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from driftproof.components import Component
from driftproof.distributed import Distributed
from driftproof.errors import ConfigurationError
from driftproof.kernels import interpolated_batch_norm, is_supported, traced_interpolated_batch_norm
from driftproof.network import BatchNormHook
from driftproof.norms import BatchNorm
from driftproof.statistics.base import Statistics, check_source_statistics, values_per_channel
from driftproof.statistics.moments import StatisticsGradient, batch_moments

__all__ = ["Blend", "BlendHook", "InterpolatedStatistics", "mixture"]


class InterpolatedStatistics(Statistics):
    """A two-component mixture of batch and source statistics; subclasses give the share α of the batch.

    μ̃ = α μ + (1 − α) μ_s and σ̃² = α σ² + (1 − α) σ_s² + α (1 − α) (μ − μ_s)², with gradients through μ and σ².

    Args:
        momentum: None takes each batch by itself. A number m in (0, 1] keeps running statistics of the stream,
            μ_t ← (1 − m) μ_t + m μ and likewise σ_t², and blends those; their history is a constant for the gradient.
        start: Where running statistics start: at those of the first "batch", or at those of the "source".
        of: See `Statistics`.

    Attributes:
        pools_variance: Whether running variances include the variance between the means of batches. Without, they are
            too small where batches are small, since images differ more from each other than their pixels do.
    """

    pools_variance = False

    def __init__(
        self, momentum: float | None, start: Literal["batch", "source"] = "batch", of: Component | None = None
    ) -> None:
        super().__init__(of)
        if momentum is not None and not 0.0 < momentum <= 1.0:
            raise ConfigurationError(f"Expected `momentum` to be None or in (0, 1], but got {momentum}.")
        if start not in ("batch", "source"):
            raise ConfigurationError(f'Expected `start` to be "batch" or "source", but got {start!r}.')
        self.momentum = momentum
        self.start = start

    def alpha_for(self, index: int) -> Tensor | float:
        """The share of the batch in the `index`-th batch-norm layer, per channel or for all."""
        raise NotImplementedError

    def momentum_for(self, x: Tensor, distributed: Distributed) -> float:
        """The share of the batch in running statistics, for a layer's input."""
        assert self.momentum is not None  # only asked where running statistics are kept
        return self.momentum

    def make_hook(self, index: int, name: str, layer: BatchNorm) -> BatchNormHook:
        """A hook that reads its share at every pass."""
        check_source_statistics(self, name, layer)
        return BlendHook(layer, self, index)


class Blend(InterpolatedStatistics):
    """A mixture of batch and source statistics with one share for all channels.

    α = 0 is `Source`, α = 1 is `Batch`. With `momentum` and `start="source"`, α = 1 gives running statistics that start
    from the source, as in RoTTA and NOTE.

    Args:
        alpha: α in [0, 1], the share of the batch.
        momentum: See `InterpolatedStatistics`.
        start: See `InterpolatedStatistics`.
        of: See `Statistics`.
    """

    def __init__(
        self,
        alpha: float,
        momentum: float | None = None,
        start: Literal["batch", "source"] = "batch",
        of: Component | None = None,
    ) -> None:
        super().__init__(momentum, start, of)
        if not 0.0 <= alpha <= 1.0:
            raise ConfigurationError(f"Expected `alpha` to be in 0..1, but got {alpha}.")
        self.alpha = alpha

    def alpha_for(self, index: int) -> float:
        """The same everywhere."""
        return self.alpha


class BlendHook(BatchNormHook):
    """Normalizes one layer with the mixture.

    Attributes:
        seen: Mean and variance of the current pass before source statistics are mixed in; None before it, and without
            running statistics.
    """

    mean: Tensor | None
    variance: Tensor | None

    def __init__(self, layer: BatchNorm, statistics: InterpolatedStatistics, index: int) -> None:
        super().__init__(layer)
        self._statistics = (statistics,)  # in a tuple: not a child of this hook
        self._index = index
        self.seen: tuple[Tensor, Tensor] | None = None
        self._alpha: Tensor | None = None
        self._share = 1.0
        self.register_buffer("mean", None)
        self.register_buffer("variance", None)

    def normalize(self, layer: BatchNorm, x: Tensor) -> Tensor:
        """The output of a plain layer, from one kernel where that works."""
        if values_per_channel(x) * self.distributed.size < 2:
            return type(layer).forward(layer, x)
        if self._can_fuse(layer, x):
            return self._normalize_fused(layer, x)
        tied, mean, variance = self._blend(layer, x)
        return F.batch_norm(tied, mean, variance, layer.weight, layer.bias, False, 0.0, layer.eps)

    def _can_fuse(self, layer: BatchNorm, x: Tensor) -> bool:
        """Whether one kernel can compute the statistics, the mixture and the output."""
        if self.distributed.size > 1 or self.settings.mask is not None or layer.weight is None or layer.bias is None:
            return False
        if torch.compiler.is_compiling():
            return x.is_cuda and x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
        return is_supported(x)

    def _normalize_fused(self, layer: BatchNorm, x: Tensor) -> Tensor:
        statistics = self._statistics[0]
        alpha = statistics.alpha_for(self._index)
        if not isinstance(alpha, Tensor):
            # Kept, since fusion wants it to exist before the pass.
            if self._alpha is None or self._alpha.device != x.device:
                self._alpha = torch.full((1,), alpha, device=x.device)
            alpha = self._alpha
        compiling = torch.compiler.is_compiling()
        function = traced_interpolated_batch_norm if compiling else interpolated_batch_norm
        running = self.mean is not None and statistics.momentum is not None
        share = statistics.momentum_for(x, self.distributed) if running else 1.0
        source_mean, source_variance = self.source_statistics
        assert source_mean is not None and source_variance is not None  # make_hook refuses other layers
        stream = (None, None) if statistics.momentum is None else (self.mean, self.variance)
        y, mean, variance = function(
            x, layer.weight, layer.bias, source_mean, source_variance, *stream, alpha, share, layer.eps
        )
        if statistics.momentum is not None:
            self._see(mean, variance, share)
        return y

    def pre_forward(self, layer: BatchNorm, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Set the statistics of any other layer."""
        if values_per_channel(inputs[0]) * self.distributed.size < 2:
            self.restore()
            return None
        tied, mean, variance = self._blend(layer, inputs[0])
        self.set_statistics(mean, variance)
        return (tied, *inputs[1:])

    def _blend(self, layer: BatchNorm, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mixture, and the input with the gradient through the batch's share in it."""
        statistics = self._statistics[0]
        alpha = statistics.alpha_for(self._index)
        source_mean, source_variance = self.source_statistics
        assert source_mean is not None and source_variance is not None  # make_hook refuses other layers
        with torch.no_grad():
            batch_mean, batch_variance, count, weights = batch_moments(x, self.distributed, self.settings.mask)
            mean, variance, share = batch_mean, batch_variance, 1.0
            if statistics.momentum is not None:
                if self.mean is not None and self.variance is not None:
                    share = statistics.momentum_for(x, self.distributed)
                    mean = torch.lerp(self.mean, batch_mean, share)
                    variance = torch.lerp(self.variance, batch_variance, share)
                self._see(mean, variance, share)
            used_mean, used_variance = mixture(alpha, mean, variance, source_mean, source_variance)
        constants = (batch_mean, mean - source_mean, used_mean, used_variance + layer.eps, count, alpha, share)
        ranks = self.distributed if self.distributed.size > 1 else None
        tied: Tensor = StatisticsGradient.apply(x, *constants, weights, ranks)  # type: ignore[no-untyped-call]
        return tied, used_mean.to(source_mean.dtype), used_variance.to(source_variance.dtype)

    def _see(self, mean: Tensor, variance: Tensor, share: float) -> None:
        """Take note of the first pass over a batch; a second one (an augmented copy) does not count."""
        if self.seen is None:
            self.seen, self._share = (mean, variance), share

    def reset(self) -> None:
        """Return to the start of running statistics."""
        self.mean = self.variance = self.seen = None
        if self._statistics[0].momentum is not None and self._statistics[0].start == "source":
            source_mean, source_variance = self.source_statistics
            assert source_mean is not None and source_variance is not None  # make_hook refuses other layers
            self.mean, self.variance = source_mean.clone(), source_variance.clone()

    def commit(self, learned: Tensor | None = None) -> None:
        """Keep what the last pass saw."""
        if self.seen is None:
            return
        (mean, variance), self.seen = self.seen, None
        if self._statistics[0].pools_variance and self._share < 1.0:
            assert self.mean is not None  # else the batch is all that was seen
            # The mean moved by a share s of its distance from the batch's, so this is s (1 − s) times its square.
            variance = variance + (1 / self._share - 1) * (mean - self.mean) ** 2
        self.mean, self.variance = mean, variance

    def rollback(self) -> None:
        """Drop what the last pass saw."""
        self.seen = None


def mixture(
    alpha: Tensor | float, mean: Tensor, variance: Tensor, source_mean: Tensor, source_variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the mixture; the last term is the variance between the two components."""
    offset = mean - source_mean
    return (
        source_mean + alpha * offset,
        alpha * variance + (1 - alpha) * source_variance + alpha * (1 - alpha) * offset**2,
    )
