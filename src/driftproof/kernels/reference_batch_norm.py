"""Batch norm in plain PyTorch, for every device and dtype that the Triton kernels do not cover."""

import torch
import torch.nn.functional as F
from torch import Tensor

from driftproof.kernels.interpolation import Interpolation

__all__ = ["apply", "backward", "compute_statistics", "upcast"]


def compute_statistics(
    x: Tensor, eps: float, interpolation: Interpolation | None, selected: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the statistics that `driftproof.kernels.dispatch.forward` returns."""
    if selected is None:
        batch_var, batch_mean = torch.var_mean(upcast(x), dim=_reduced_dims(x), correction=0)
    else:
        batch_mean, batch_var = _selected_moments(x, selected)
    if interpolation is None:
        return batch_mean, (batch_var + eps).rsqrt()
    source_mean, source_var, stream_mean, stream_var, alpha, share = interpolation
    source_mean, source_var, alpha = (values.to(batch_mean.dtype) for values in (source_mean, source_var, alpha))
    mean, var = batch_mean, batch_var
    if stream_mean is not None and stream_var is not None:
        mean = torch.lerp(stream_mean.to(mean.dtype), mean, share)
        var = torch.lerp(stream_var.to(var.dtype), var, share)
    # lerp is exact at both ends: alpha 1 gives the batch's statistics to the last bit, alpha 0 the source's.
    used_mean = torch.lerp(source_mean, mean, alpha)
    between = alpha * (1 - alpha) * (mean - source_mean) ** 2
    inv_std = (alpha * var + (1 - alpha) * source_var + between + eps).rsqrt()
    return used_mean, inv_std, mean, var, (mean - batch_mean) * inv_std


def apply(x: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
    """Return `x` normalized, scaled and shifted, after a ReLU if asked for."""
    y = (upcast(x) - _broadcast(mean, x)) * _broadcast(inv_std * weight, x) + _broadcast(bias, x)
    return (F.relu(y) if relu else y).to(x.dtype)


def backward(
    grad_output: Tensor,
    residual_grad: Tensor | None,
    x: Tensor,
    mean: Tensor,
    inv_std: Tensor,
    weight: Tensor,
    bias: Tensor,
    alpha: Tensor | None,
    mean_shift: Tensor | None,
    share: float,
    selected: Tensor | None = None,
    *,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias; `driftproof.kernels.dispatch.backward` has the arguments."""
    xhat = (upcast(x) - _broadcast(mean, x)) * _broadcast(inv_std, x)
    dy = upcast(grad_output)
    if relu:
        dy = torch.where(apply(x, mean, inv_std, weight, bias, relu=False) <= 0, 0.0, dy)
    grad_weight, grad_bias = (dy * xhat).sum(_reduced_dims(x)), dy.sum(_reduced_dims(x))
    weights, rows = (None, x.numel() // x.shape[1]) if selected is None else _value_weights(x, selected)
    mean_dy, mean_dy_xhat = grad_bias / rows, grad_weight / rows
    if alpha is not None and mean_shift is not None:
        batch_share = alpha * share
        mean_dy_xhat = mean_dy_xhat * batch_share
        mean_dy = mean_dy * batch_share + mean_dy_xhat * mean_shift
    through_statistics = _broadcast(mean_dy, x) + xhat * _broadcast(mean_dy_xhat, x)
    if weights is not None:
        through_statistics = through_statistics * weights
    grad_input = (_broadcast(weight * inv_std, x) * (dy - through_statistics)).to(x.dtype)
    return grad_input if residual_grad is None else grad_input + residual_grad, grad_weight, grad_bias


def upcast(x: Tensor) -> Tensor:
    """Return `x` in at least float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _selected_moments(x: Tensor, selected: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of the selected samples."""
    weights, count = _value_weights(x, selected)
    mean = (weights * upcast(x)).sum(_reduced_dims(x)) / count
    return mean, (weights * (upcast(x) - _broadcast(mean, x)) ** 2).sum(_reduced_dims(x)) / count


def _value_weights(x: Tensor, selected: Tensor) -> tuple[Tensor, Tensor]:
    """Return one or zero for each sample, to broadcast against `x`, and the number of values per channel."""
    positions = x[0, 0].numel()
    chosen = selected | (selected.sum() * positions < 2)
    weights = chosen.to(upcast(x).dtype).view(-1, *[1] * (x.ndim - 1))
    return weights, weights.sum() * positions


def _reduced_dims(x: Tensor) -> list[int]:
    return [dim for dim in range(x.ndim) if dim != 1]


def _broadcast(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.ndim - 2))
