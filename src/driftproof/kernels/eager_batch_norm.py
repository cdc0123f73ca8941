"""Batch norm for networks that run operation by operation.

It rounds as the fused operators do, so a step in which everything is fused learns exactly what an eager step learns.
Calls do not go through the PyTorch dispatcher, which takes about as long as a launch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from driftproof.kernels import dispatch
from driftproof.kernels.arrival_counters import zero_counters
from driftproof.kernels.interpolation import Interpolation

__all__ = ["batch_norm", "interpolated_batch_norm"]


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, selected: Tensor | None = None) -> Tensor:
    """Return `x` normalized with the statistics of the batch.

    Args:
        x: Activations, with channels along dimension 1. The kernels run where `is_supported`.
        weight: Scale of each channel, (C,).
        bias: Shift of each channel, (C,).
        eps: Added to the variance.
        selected: The samples that statistics are taken from, boolean, (N,); None is all of them, and so is a selection
            that leaves a channel fewer than two values. Gradients through the statistics reach these samples alone.
    """
    y: Tensor
    (y,) = _BatchNorm.apply(x, weight, bias, eps, None, selected)  # type: ignore[no-untyped-call]
    return y


def interpolated_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    source_mean: Tensor,
    source_var: Tensor,
    stream_mean: Tensor | None,
    stream_var: Tensor | None,
    alpha: Tensor,
    share: float,
    eps: float,
    selected: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `x` normalized with interpolated statistics, and the stream's mean and variance after this batch.

    `driftproof.kernels.interpolation.Interpolation` defines the statistics. The gradient runs through the mean and the
    variance of the batch; everything else that they are mixed with is a constant.

    Args:
        x: As in `batch_norm`.
        weight: As in `batch_norm`.
        bias: As in `batch_norm`.
        source_mean: Mean of the source data, (C,).
        source_var: Variance of the source data, (C,).
        stream_mean: Mean of the stream before this batch, (C,); None takes the batch by itself.
        stream_var: Variance of the stream before this batch, (C,) or None.
        alpha: Share of the batch or stream against the source: one element, or one per channel.
        share: Share of this batch in the stream statistics; not used without them.
        eps: Added to the variance.
        selected: As in `batch_norm`.

    Returns:
        The result, and mean and variance of the stream; without stream statistics, of the batch.
    """
    interpolation = Interpolation(source_mean, source_var, stream_mean, stream_var, alpha, share)
    y, mean, var = _BatchNorm.apply(x, weight, bias, eps, interpolation, selected)  # type: ignore[no-untyped-call]
    return y, mean, var


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # torch types it so
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        interpolation: Interpolation | None,
        selected: Tensor | None,
    ) -> tuple[Tensor, ...]:
        counters = zero_counters(1, x.shape[1], x.device)[0]
        y, _, statistics = dispatch.forward(x, None, weight, bias, interpolation, eps, counters, selected, relu=False)
        used_mean, inv_std, *others = statistics
        alpha = mean_shift = None
        ctx.share = 1.0
        if interpolation is not None:
            alpha, mean_shift, ctx.share = interpolation.alpha, others.pop(), interpolation.batch_share
        ctx.save_for_backward(x, used_mean, inv_std, weight, bias, alpha, mean_shift, counters, selected)
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        return y, *others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        if grad_output is None:
            return (None,) * 6
        x, mean, inv_std, weight, bias, alpha, mean_shift, counters, selected = ctx.saved_tensors
        layer = (x, mean, inv_std, weight, bias, alpha, mean_shift)
        how = (ctx.share, counters, selected)
        return *dispatch.backward(grad_output, None, *layer, *how, relu=False), None, None, None
