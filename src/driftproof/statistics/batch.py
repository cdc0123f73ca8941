"""Normalise with the batch's own statistics."""

from torch import Tensor

from driftproof.network import LayerRule
from driftproof.norms import BatchNorm
from driftproof.statistics.base import Statistics, values_per_channel

__all__ = ["Batch"]


class Batch(Statistics):
    """The mean and biased variance of the current batch ("TBN"); gradients flow through both.

    Running statistics are neither used nor updated. The one exception is a layer that sees a single value per channel,
    see the module's documentation.
    """

    def rule_for(self, index: int, name: str, layer: BatchNorm) -> LayerRule:
        """Let the layer's own fused kernel compute the statistics."""
        return _BatchRule(layer)


class _BatchRule(LayerRule):
    def enter(self, layer: BatchNorm, inputs: tuple[Tensor, ...]) -> None:
        # Without running statistics a batch norm takes the batch's, in every mode.
        if values_per_channel(inputs[0]) >= 2:
            self.use(None, None)
