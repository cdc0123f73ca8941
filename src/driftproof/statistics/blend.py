"""Normalize with a mixture of the batch's statistics and those of training."""

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError
from driftproof.network import BatchNormHook
from driftproof.norms import BatchNorm
from driftproof.statistics.base import Statistics, require_source_statistics, values_per_channel
from driftproof.statistics.moments import StatisticsGradient, shared_statistics

__all__ = ["Blend", "InterpolatedStatistics", "mixture"]


class InterpolatedStatistics(Statistics):
    """A two-component mixture of batch and source statistics; subclasses say with which share α.

    μ̃ = α μ + (1 − α) μ_s and σ̃² = α σ² + (1 − α) σ_s² + α (1 − α) (μ − μ_s)², with gradients through μ and σ².

    Args:
        momentum: None takes each batch by itself. A number m in (0, 1] keeps online statistics of the stream,
            μ_t ← (1 − m) μ_t + m μ (the first batch's to begin with) and likewise σ_t², and blends those; their
            history is a constant for the gradient.
    """

    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        if momentum is not None and not 0.0 < momentum <= 1.0:
            raise ConfigurationError(f"Expected `momentum` to be None or in (0, 1], but got {momentum}.")
        self.momentum = momentum

    def alpha_for(self, index: int) -> Tensor | float:
        """The share of the batch in the `index`-th batch-norm layer, per channel or for all."""
        raise NotImplementedError

    def rule_for(self, index: int, name: str, layer: BatchNorm) -> BatchNormHook:
        """A rule that asks for its share at every pass."""
        require_source_statistics(self, name, layer)
        return _BlendRule(layer, self, index)


class Blend(InterpolatedStatistics):
    """A mixture of batch and source statistics with one share for all channels.

    α = 0 is `Source`, α = 1 is `Batch`.

    Args:
        alpha: α in [0, 1], the share of the batch.
        momentum: See `InterpolatedStatistics`.
    """

    def __init__(self, alpha: float, momentum: float | None = None) -> None:
        super().__init__(momentum)
        if not 0.0 <= alpha <= 1.0:
            raise ConfigurationError(f"Expected `alpha` to be in 0..1, but got {alpha}.")
        self.alpha = alpha

    def alpha_for(self, index: int) -> float:
        """The same everywhere."""
        return self.alpha


class _BlendRule(BatchNormHook):
    mean: Tensor | None
    variance: Tensor | None

    def __init__(self, layer: BatchNorm, statistics: InterpolatedStatistics, index: int) -> None:
        super().__init__(layer)
        self._statistics = (statistics,)  # in a tuple: not a child of this rule
        self._index = index
        self._seen: tuple[Tensor, Tensor] | None = None
        self.register_buffer("mean", None)
        self.register_buffer("variance", None)

    def enter(self, layer: BatchNorm, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        x = inputs[0]
        if values_per_channel(x) * self.distributed.size < 2:
            self.leave()
            return None
        statistics = self._statistics[0]
        alpha = statistics.alpha_for(self._index)
        source_mean, source_variance = self.source_statistics
        assert source_mean is not None and source_variance is not None  # rule_for refuses other layers
        with torch.no_grad():
            batch_mean, batch_variance, count = shared_statistics(x, self.distributed)
            mean, variance, share = batch_mean, batch_variance, 1.0
            if statistics.momentum is not None:
                if self.mean is not None and self.variance is not None:
                    share = statistics.momentum
                    mean = torch.lerp(self.mean, batch_mean, share)
                    variance = torch.lerp(self.variance, batch_variance, share)
                # The first pass over a batch counts; a second look at it (an augmented copy) does not.
                self._seen = self._seen or (mean, variance)
            used_mean, used_variance = mixture(alpha, mean, variance, source_mean, source_variance)
        self.use(used_mean.to(source_mean.dtype), used_variance.to(source_variance.dtype))
        constants = (batch_mean, mean - source_mean, used_mean, used_variance + layer.eps)
        distributed = self.distributed if self.distributed.size > 1 else None
        tied: Tensor = StatisticsGradient.apply(x, *constants, count, alpha, share, distributed)  # type: ignore[no-untyped-call]
        return (tied, *inputs[1:])

    def begin(self) -> None:
        self.mean = self.variance = self._seen = None

    def commit(self) -> None:
        if self._seen is not None:
            (self.mean, self.variance), self._seen = self._seen, None

    def discard(self) -> None:
        self._seen = None


def mixture(
    alpha: Tensor | float, mean: Tensor, variance: Tensor, source_mean: Tensor, source_variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the mixture; its last term is the variance between the two components."""
    apart = mean - source_mean
    return (
        source_mean + alpha * apart,
        alpha * variance + (1 - alpha) * source_variance + alpha * (1 - alpha) * apart**2,
    )
