"""Normalize with the batch's own statistics."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _get_cudnn_enabled  # what `torch.backends.cudnn.enabled` asks, without its Python

from driftproof.kernels import batch_norm, is_supported
from driftproof.network import BatchNormHook
from driftproof.norms import BatchNorm
from driftproof.statistics.base import Statistics, can_fuse_selected, values_per_channel
from driftproof.statistics.moments import StatisticsGradient, batch_moments

__all__ = ["Batch"]


class Batch(Statistics):
    """The mean and biased variance of the current batch ("TBN"); gradients flow through both.

    Running statistics are neither used nor updated. The one exception is a layer that sees a single value per channel,
    see the module's documentation.

    Args:
        of: See `Statistics`.
    """

    def make_hook(self, index: int, name: str, layer: BatchNorm) -> BatchNormHook:
        """A hook that lets the layer's own kernel compute the statistics."""
        return _BatchHook(layer)


class _BatchHook(BatchNormHook):
    def normalize(self, layer: BatchNorm, x: Tensor) -> Tensor:
        parameters, ranks = layer._parameters, self.distributed.size  # a module's own attribute access is slow
        weight, bias = parameters["weight"], parameters["bias"]
        if x.numel() * ranks < 2 * layer.num_features:
            return type(layer).forward(layer, x)
        mask = self.settings.mask
        if ranks == 1 and mask is not None and can_fuse_selected(layer, x, mask):
            return batch_norm(x, layer.weight, layer.bias, layer.eps, mask)
        if ranks > 1 or mask is not None:
            tied, mean, variance = self._reduce(layer, x)
            return F.batch_norm(tied, mean, variance, weight, bias, False, 0.0, layer.eps)
        if torch.compiler.is_compiling():  # shown torch's own function, which fusion recognizes
            return F.batch_norm(x, None, None, weight, bias, True, 0.1, layer.eps)
        if weight is not None and bias is not None and is_supported(x):
            return batch_norm(x, weight, bias, layer.eps)
        return torch.batch_norm(x, weight, bias, None, None, True, 0.0, layer.eps, _get_cudnn_enabled())

    def pre_forward(self, layer: BatchNorm, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if values_per_channel(inputs[0]) * self.distributed.size < 2:
            self.restore()
            return None
        if self.distributed.size > 1 or self.settings.mask is not None:
            tied, mean, variance = self._reduce(layer, inputs[0])
            self.set_statistics(mean, variance)
            return (tied, *inputs[1:])
        # Without running statistics a batch norm takes the batch's, in every mode.
        self.set_statistics(None, None)
        return None

    def _reduce(self, layer: BatchNorm, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Statistics over all ranks or over a subset of the samples, and the input with the gradient through them."""
        with torch.no_grad():
            mean, variance, count, weights = batch_moments(x, self.distributed, self.settings.mask)
        running, _ = self.source_statistics
        dtype = mean.dtype if running is None else running.dtype
        constants = (mean, torch.zeros_like(mean), mean, variance + layer.eps, count, 1.0, 1.0)
        ranks = self.distributed if self.distributed.size > 1 else None
        tied: Tensor = StatisticsGradient.apply(x, *constants, weights, ranks)  # type: ignore[no-untyped-call]
        return tied, mean.to(dtype), variance.to(dtype)
