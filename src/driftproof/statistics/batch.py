"""Normalize with the batch's own statistics."""

import torch
from torch import Tensor

from driftproof.network import BatchNormHook
from driftproof.norms import BatchNorm
from driftproof.statistics.base import Statistics, values_per_channel
from driftproof.statistics.moments import StatisticsGradient, shared_statistics

__all__ = ["Batch"]


class Batch(Statistics):
    """The mean and biased variance of the current batch ("TBN"); gradients flow through both.

    Running statistics are neither used nor updated. The one exception is a layer that sees a single value per channel,
    see the module's documentation.
    """

    def rule_for(self, index: int, name: str, layer: BatchNorm) -> BatchNormHook:
        """Let the layer's own fused kernel compute the statistics."""
        return _BatchRule(layer)


class _BatchRule(BatchNormHook):
    def enter(self, layer: BatchNorm, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self.distributed.size > 1:
            return self._share(layer, inputs)
        # Without running statistics a batch norm takes the batch's, in every mode.
        if values_per_channel(inputs[0]) >= 2:
            self.use(None, None)
        else:
            self.leave()
        return None

    def _share(self, layer: BatchNorm, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Normalize with the statistics of all ranks; each brings a value at least, so there are always two."""
        x = inputs[0]
        with torch.no_grad():
            mean, variance, count = shared_statistics(x, self.distributed)
        kept, _ = self.source_statistics
        kind = mean.dtype if kept is None else kept.dtype
        self.use(mean.to(kind), variance.to(kind))
        constants = (mean, torch.zeros_like(mean), mean, variance + layer.eps, count)
        tied: Tensor = StatisticsGradient.apply(x, *constants, 1.0, 1.0, self.distributed)  # type: ignore[no-untyped-call]
        return (tied, *inputs[1:])
