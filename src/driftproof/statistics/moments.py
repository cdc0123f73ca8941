"""The mean and variance of a batch, and the gradient through them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from driftproof.distributed import Distributed
from driftproof.predictions import upcast
from driftproof.statistics.base import values_per_channel

__all__ = ["StatisticsGradient", "batch_moments", "batch_statistics", "per_channel"]


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    variance, mean = torch.var_mean(upcast(x), dim=axes, correction=0)
    return mean, variance


def batch_moments(
    x: Tensor, distributed: Distributed, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | int, Tensor | None]:
    """Mean and biased variance per channel over all ranks and masked samples.

    A layer in which the mask leaves fewer than two values per channel takes all of them.

    Returns:
        Mean, variance, the number of values per channel, and the weight of each value (None is one for all).
    """
    if mask is None:
        weights = None
        mean, variance = batch_statistics(x)
        count: Tensor | int = values_per_channel(x)
    else:
        weights = _expand_mask(mask, x)
        (selected,) = distributed.sum((weights > 0).sum(dtype=weights.dtype))
        weights = torch.where(selected < 2, torch.ones_like(weights), weights)
        mean, variance, count = _masked_statistics(upcast(x), weights)
    if distributed.size == 1:
        return mean, variance, count, weights
    own = torch.as_tensor(count, dtype=mean.dtype, device=mean.device).reshape(1)
    gathered = distributed.all_gather(torch.cat([mean, variance, own]))
    means, variances = gathered[:, :-1].chunk(2, dim=1)
    counts = gathered[:, -1:]
    shares = counts / counts.sum()
    mean = (shares * means).sum(dim=0)
    # Variance within ranks plus variance between them: a difference of large sums would lose digits.
    return mean, (shares * (variances + (means - mean) ** 2)).sum(dim=0), counts.sum(), weights


def _expand_mask(mask: Tensor, x: Tensor) -> Tensor:
    """The weight of each position of `x`, (N, 1, ...).

    A mask of pixels is brought to the layer's resolution: a position weighs as much as the share of its pixels.
    """
    weights = mask.to(upcast(x).dtype)
    if weights.ndim == 3 and x.ndim == 4:
        return F.adaptive_avg_pool2d(weights.unsqueeze(1), (x.shape[2], x.shape[3]))
    samples = weights.flatten(1).mean(dim=1) if weights.ndim > 1 else weights
    return samples.view(-1, *([1] * (x.ndim - 1))).expand(x.shape[0], 1, *x.shape[2:])


def _masked_statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    axes = [axis for axis in range(x.ndim) if axis != 1]
    count = weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)  # a rank may have none of the samples
    mean = (weights * x).sum(axes) / count
    variance = (weights * (x - per_channel(mean, x)) ** 2).sum(axes) / count
    return mean, variance, count


class StatisticsGradient(torch.autograd.Function):
    """Passes its input through; its backward adds the gradient through the batch's mean and variance.

    The layer after it normalizes with μ̃ and σ̃² as constants. From the gradient g that layer sends to its input,
    ∂L/∂μ̃ = −Σ g and ∂L/∂σ̃² = −½ Σ g (x − μ̃)/(σ̃² + ε), over the batch of all ranks and whatever the layer does
    afterwards. So this works for every kind of batch norm, and saves no activation but the input that the layer saves
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
        weights: Tensor | None,
        distributed: Distributed | None,
    ) -> Tensor:
        """The input itself."""
        ctx.save_for_backward(x, batch_mean, offset, used_mean, used_variance)
        ctx.count, ctx.alpha, ctx.share, ctx.weights, ctx.distributed = count, alpha, share, weights, distributed
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """The gradient, with what flows through mean and variance."""
        x, batch_mean, offset, used_mean, used_variance = ctx.saved_tensors
        alpha, share = ctx.alpha, ctx.share
        axes = [axis for axis in range(x.ndim) if axis != 1]
        wide_x, wide_grad = upcast(x), upcast(grad_output)
        grad_used_mean = -wide_grad.sum(axes)
        grad_used_variance = -0.5 * (wide_grad * (wide_x - per_channel(used_mean, x))).sum(axes) / used_variance
        if ctx.distributed is not None:
            grad_used_mean, grad_used_variance = ctx.distributed.sum(grad_used_mean, grad_used_variance)
        grad_mean = share * (alpha * grad_used_mean + 2 * alpha * (1 - alpha) * offset * grad_used_variance)
        grad_variance = share * alpha * grad_used_variance
        through = per_channel(grad_mean, x) + 2 * per_channel(grad_variance, x) * (wide_x - per_channel(batch_mean, x))
        through = through / ctx.count
        if ctx.weights is not None:
            through = through * ctx.weights
        return (grad_output + through.to(grad_output.dtype), *[None] * 9)


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per channel to broadcast against `like`, with channels along dimension 1."""
    return values.view(1, -1, *([1] * (like.ndim - 2)))
