"""The mean and variance of a batch, and the gradient that runs through them."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from driftproof.distributed import Distributed
from driftproof.predictions import upcast
from driftproof.statistics.base import values_per_channel

__all__ = ["StatisticsGradient", "batch_statistics", "per_channel", "shared_statistics"]


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    variance, mean = torch.var_mean(upcast(x), dim=axes, correction=0)
    return mean, variance


def shared_statistics(x: Tensor, distributed: Distributed) -> tuple[Tensor, Tensor, Tensor | int]:
    """Mean and biased variance per channel over the batch of all ranks, and over how many values.

    The variance is that within the ranks and that between them: a difference of large sums would lose digits.
    """
    mean, variance = batch_statistics(x)
    own = values_per_channel(x)
    if distributed.size == 1:
        return mean, variance, own
    everybody = distributed.all_gather(torch.cat([mean, variance, mean.new_full((1,), own)]))
    means, variances = everybody[:, :-1].chunk(2, dim=1)
    counts = everybody[:, -1:]
    shares = counts / counts.sum()
    mean = (shares * means).sum(dim=0)
    return mean, (shares * (variances + (means - mean) ** 2)).sum(dim=0), counts.sum()


class StatisticsGradient(torch.autograd.Function):
    """Hands its input on; adds, on the way back, the gradient that runs through the batch's mean and variance.

    The layer after it normalizes with μ̃ and σ̃² as constants. From the gradient g that layer sends to its input,
    ∂L/∂μ̃ = −Σ g and ∂L/∂σ̃² = −½ Σ g (x − μ̃)/(σ̃² + ε), over the batch of all ranks and whatever the layer does
    afterwards: so this works for every kind of batch norm, and keeps no activation but the input that the layer keeps
    anyway.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # torch types it so
        x: Tensor,
        batch_mean: Tensor,
        offset: Tensor,
        used_mean: Tensor,
        used_variance: Tensor,
        count: Tensor | int,
        alpha: Tensor | float,
        share: float,
        distributed: Distributed | None,
    ) -> Tensor:
        """The input itself."""
        ctx.save_for_backward(x, batch_mean, offset, used_mean, used_variance)
        ctx.count, ctx.alpha, ctx.share, ctx.distributed = count, alpha, share, distributed
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """The gradient with what runs through mean and variance."""
        x, batch_mean, offset, used_mean, used_variance = ctx.saved_tensors
        alpha, share = ctx.alpha, ctx.share
        axes = [axis for axis in range(x.ndim) if axis != 1]
        wide_x, wide_gradient = upcast(x), upcast(gradient)
        from_mean = -wide_gradient.sum(axes)
        from_variance = -0.5 * (wide_gradient * (wide_x - per_channel(used_mean, x))).sum(axes) / used_variance
        if ctx.distributed is not None:
            from_mean, from_variance = ctx.distributed.sum(from_mean, from_variance)
        to_mean = share * (alpha * from_mean + 2 * alpha * (1 - alpha) * offset * from_variance)
        to_variance = share * alpha * from_variance
        through = per_channel(to_mean, x) + 2 * per_channel(to_variance, x) * (wide_x - per_channel(batch_mean, x))
        return (gradient + (through / ctx.count).to(gradient.dtype), *[None] * 8)


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel, shaped to meet a tensor with channels along dimension 1."""
    return values.view(1, -1, *([1] * (like.ndim - 2)))
