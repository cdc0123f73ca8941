"""Batch normalization with the batch's own statistics, together with what comes before and after it.

A residual network adds, normalizes and rectifies. Each of these alone reads and writes the whole image; on a device
that waits for its memory most of the time, one operation for the three is worth having. They are operations of torch in
their own right, so that `torch.compile` carries them through; on anything but a CUDA device they are plain PyTorch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op

__all__ = ["add_normalize", "backward_on_cuda", "normalize", "normalize_on_cuda"]


@custom_op("driftproof::normalize", mutates_args=())
def normalize(
    x: Tensor, weight: Tensor, bias: Tensor, tickets: Tensor, place: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize every channel over the batch, then rectify if asked to.

    Args:
        x: Images, (N, C, H, W).
        weight: Factor on each channel afterwards, (C,).
        bias: Added then, (C,).
        tickets: From `new_tickets`; as they were when it returns.
        place: Which row of them is this layer's.
        eps: Added to the variance.
        relu: Whether to cut off at zero.

    Returns:
        The result, and of every channel the mean and one over the standard deviation.

    Examples:
        >>> from driftproof.kernels import new_tickets
        >>> x = torch.rand(2, 3, 4, 4)
        >>> y, _, _ = normalize(x, torch.ones(3), torch.zeros(3), new_tickets(1, 3, x.device), 0, 1e-5, True)
        >>> bool(torch.allclose(y, F.relu(F.batch_norm(x, None, None, training=True)), atol=1e-5))
        True
    """
    variance, mean = torch.var_mean(x.float(), dim=(0, 2, 3), correction=0)
    scale = (variance + eps).rsqrt()
    return _affine(x, mean, scale, weight, bias, relu), mean, scale


@custom_op("driftproof::add_normalize", mutates_args=())
def add_normalize(
    x: Tensor, addend: Tensor, weight: Tensor, bias: Tensor, tickets: Tensor, place: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `normalize`, of a sum that is returned as well, second."""
    total = x + addend
    y, mean, scale = normalize(total, weight, bias, tickets, place, eps, relu)
    return y, total, mean, scale


@custom_op("driftproof::normalize_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    beside: Tensor | None,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    bias: Tensor,
    tickets: Tensor,
    place: int,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    normal = (x.float() - _across(mean)) * _across(scale)
    arrived = gradient.float()
    if relu:
        arrived = torch.where(_affine(x, mean, scale, weight, bias, relu=False) <= 0, 0.0, arrived)
    to_weight, to_bias = (arrived * normal).sum((0, 2, 3)), arrived.sum((0, 2, 3))
    values = x.numel() // x.shape[1]
    through_statistics = (_across(to_bias) + normal * _across(to_weight)) / values
    leaving = (_across(weight * scale) * (arrived - through_statistics)).to(x.dtype)
    return leaving if beside is None else leaving + beside, to_weight, to_bias


@normalize.register_kernel("cuda")
def normalize_on_cuda(
    x: Tensor, weight: Tensor, bias: Tensor, tickets: Tensor, place: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As `normalize`."""
    from driftproof.kernels import triton_batch_norm

    with torch.cuda.device(x.device):
        x, mean, scale = triton_batch_norm.reduce(_channels_last(x), None, eps, tickets[place])
        return triton_batch_norm.apply(x, mean, scale, weight, bias, relu=relu), mean, scale


@add_normalize.register_kernel("cuda")
def _(
    x: Tensor, addend: Tensor, weight: Tensor, bias: Tensor, tickets: Tensor, place: int, eps: float, relu: bool
) -> tuple[Tensor, ...]:
    from driftproof.kernels import triton_batch_norm

    with torch.cuda.device(x.device):
        total, mean, scale = triton_batch_norm.reduce(_channels_last(x), _channels_last(addend), eps, tickets[place])
        return triton_batch_norm.apply(total, mean, scale, weight, bias, relu=relu), total, mean, scale


@_backward.register_kernel("cuda")
def backward_on_cuda(
    gradient: Tensor,
    beside: Tensor | None,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    bias: Tensor,
    tickets: Tensor,
    place: int,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the input and of the layer, from that of the result and what came to the input otherwise."""
    from driftproof.kernels import triton_batch_norm

    gradient, x = _channels_last(gradient), _channels_last(x)
    beside = None if beside is None else _channels_last(beside)
    layer = (mean, scale, weight, bias)
    with torch.cuda.device(x.device):
        to_weight, to_bias = triton_batch_norm.reduce_backward(gradient, x, *layer, tickets[place], relu=relu)
        leaving = triton_batch_norm.apply_backward(gradient, x, *layer, to_weight, to_bias, beside, relu=relu)
    return leaving, to_weight, to_bias


@normalize.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, tickets: Tensor, place: int, eps: float, relu: bool
) -> tuple[Tensor, ...]:
    return _like(x), _per_channel(x), _per_channel(x)


@add_normalize.register_fake
def _(
    x: Tensor, addend: Tensor, weight: Tensor, bias: Tensor, tickets: Tensor, place: int, eps: float, relu: bool
) -> tuple[Tensor, ...]:
    return _like(x), _like(x), _per_channel(x), _per_channel(x)


@_backward.register_fake
def _(gradient: Tensor, beside: Tensor | None, x: Tensor, *others: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    return _like(x), _per_channel(x), _per_channel(x)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401  # torch types it so
    x, weight, bias, tickets, ctx.place, _, ctx.relu = inputs
    ctx.save_for_backward(x, *output[1:], weight, bias, tickets)
    ctx.set_materialize_grads(False)  # nobody differentiates mean and scale, and zeros cost a launch each


def _keep_total(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
    _, _, weight, bias, tickets, ctx.place, _, ctx.relu = inputs
    ctx.save_for_backward(*output[1:], weight, bias, tickets)
    ctx.set_materialize_grads(False)


def _to_inputs(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    x, *layer = ctx.saved_tensors
    leaving, to_weight, to_bias = _backward(_arrived(gradient, x), None, x, *layer, ctx.place, ctx.relu)
    return leaving, to_weight, to_bias, None, None, None, None


def _to_summands(
    ctx: Any,  # noqa: ANN401
    gradient: Tensor | None,
    beside: Tensor | None,
    *_: None,
) -> tuple[Tensor | None, ...]:
    total, *layer = ctx.saved_tensors
    beside = None if beside is None else _laid_out(beside)
    leaving, to_weight, to_bias = _backward(_arrived(gradient, total), beside, total, *layer, ctx.place, ctx.relu)
    return leaving, leaving, to_weight, to_bias, None, None, None, None


normalize.register_autograd(_to_inputs, setup_context=_keep)
add_normalize.register_autograd(_to_summands, setup_context=_keep_total)


def _across(values: Tensor) -> Tensor:
    return values[:, None, None]


def _affine(x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    y = (x.float() - _across(mean)) * _across(scale * weight) + _across(bias)
    return (F.relu(y) if relu else y).to(x.dtype)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _arrived(gradient: Tensor | None, x: Tensor) -> Tensor:
    return torch.zeros_like(x) if gradient is None else _laid_out(gradient)


def _laid_out(gradient: Tensor) -> Tensor:
    # Said where a compiler sees it, so that whatever makes the gradient writes it like this.
    return _channels_last(gradient) if gradient.is_cuda else gradient


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last) if x.is_cuda else torch.empty_like(x)


def _per_channel(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1], dtype=torch.float32)
