"""Batch norm as PyTorch operators, with an optional addition before it and ReLU after it.

A residual network adds, normalizes and applies a ReLU. Each alone reads and writes the whole activation, and a GPU
spends most of its time waiting for memory, so one operator for all three is faster. `torch.compile` keeps the operators
as they are.

The last three arguments are the same everywhere: `counters` from `new_counters` (None makes them), the layer's row in
them, `layer_index`, and whether a ReLU follows, `relu`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from driftproof.kernels import dispatch
from driftproof.kernels.interpolation import Interpolation

__all__ = [
    "add_batch_norm",
    "add_interpolated_batch_norm",
    "batch_norm",
    "interpolated_batch_norm",
    "traced_interpolated_batch_norm",
]


def traced_interpolated_batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor,
    source_mean: Tensor, source_var: Tensor, stream_mean: Tensor | None, stream_var: Tensor | None,
    alpha: Tensor, share: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what the eager `interpolated_batch_norm` returns, as one node of a traced graph."""
    y, _, _, mean, var, _ = torch.ops.driftproof.interpolated_batch_norm.default(
        x, weight, bias, source_mean, source_var, stream_mean, stream_var, alpha, share, eps, None, 0, False
    )
    return y, mean, var


@custom_op("driftproof::batch_norm", mutates_args=())
def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, counters: Tensor | None, layer_index: int, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `x` normalized with the statistics of the batch, the mean, and one over the standard deviation.

    Examples:
        >>> import torch.nn.functional as F
        >>> x = torch.rand(2, 3, 4, 4)
        >>> y, _, _ = batch_norm(x, torch.ones(3), torch.zeros(3), 1e-5, None, 0, True)
        >>> bool(torch.allclose(y, F.relu(F.batch_norm(x, None, None, training=True)), atol=1e-5))
        True
    """
    y, _, (mean, inv_std) = dispatch.forward(x, None, weight, bias, None, eps, _row(counters, layer_index), relu=relu)
    return y, mean, inv_std


@custom_op("driftproof::add_batch_norm", mutates_args=())
def add_batch_norm(
    x: Tensor, addend: Tensor, weight: Tensor, bias: Tensor, eps: float,
    counters: Tensor | None, layer_index: int, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what `batch_norm` returns of `x + addend`, with the sum as the second result."""
    own = _row(counters, layer_index)
    y, total, (mean, inv_std) = dispatch.forward(x, addend, weight, bias, None, eps, own, relu=relu)
    return y, total, mean, inv_std


@custom_op("driftproof::interpolated_batch_norm", mutates_args=())
def interpolated_batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor,
    source_mean: Tensor, source_var: Tensor, stream_mean: Tensor | None, stream_var: Tensor | None,
    alpha: Tensor, share: float, eps: float, counters: Tensor | None, layer_index: int, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return `x` normalized with interpolated statistics, and the statistics that `dispatch.forward` returns.

    `Interpolation` documents the arguments.
    """
    interpolation = Interpolation(source_mean, source_var, stream_mean, stream_var, alpha, share)
    own = _row(counters, layer_index)
    y, _, statistics = dispatch.forward(x, None, weight, bias, interpolation, eps, own, relu=relu)
    used_mean, inv_std, mean, var, mean_shift = statistics
    return y, used_mean, inv_std, mean, var, mean_shift


@custom_op("driftproof::add_interpolated_batch_norm", mutates_args=())
def add_interpolated_batch_norm(
    x: Tensor, addend: Tensor, weight: Tensor, bias: Tensor,
    source_mean: Tensor, source_var: Tensor, stream_mean: Tensor | None, stream_var: Tensor | None,
    alpha: Tensor, share: float, eps: float, counters: Tensor | None, layer_index: int, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what `interpolated_batch_norm` returns of `x + addend`, with the sum as the second result."""
    interpolation = Interpolation(source_mean, source_var, stream_mean, stream_var, alpha, share)
    own = _row(counters, layer_index)
    y, total, statistics = dispatch.forward(x, addend, weight, bias, interpolation, eps, own, relu=relu)
    used_mean, inv_std, mean, var, mean_shift = statistics
    return y, total, used_mean, inv_std, mean, var, mean_shift


@custom_op("driftproof::batch_norm_backward", mutates_args=())
def _batch_norm_backward(
    grad_output: Tensor, residual_grad: Tensor | None, x: Tensor, mean: Tensor, inv_std: Tensor,
    weight: Tensor, bias: Tensor, alpha: Tensor | None, mean_shift: Tensor | None, counters: Tensor | None,
    layer_index: int, share: float, relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    own = _row(counters, layer_index)
    layer = (mean, inv_std, weight, bias)
    return dispatch.backward(grad_output, residual_grad, x, *layer, alpha, mean_shift, share, own, relu=relu)


@batch_norm.register_fake
def _(x: Tensor, *_: object) -> tuple[Tensor, ...]:
    return _like(x), *_per_channel(x, 2)


@add_batch_norm.register_fake
def _(x: Tensor, *_: object) -> tuple[Tensor, ...]:
    return _like(x), _like(x), *_per_channel(x, 2)


@interpolated_batch_norm.register_fake
def _(x: Tensor, *_: object) -> tuple[Tensor, ...]:
    return _like(x), *_per_channel(x, 5)


@add_interpolated_batch_norm.register_fake
def _(x: Tensor, *_: object) -> tuple[Tensor, ...]:
    return _like(x), _like(x), *_per_channel(x, 5)


@_batch_norm_backward.register_fake
def _(grad_output: Tensor, residual_grad: Tensor | None, x: Tensor, *_: object) -> tuple[Tensor, ...]:
    return _like(x), *_per_channel(x, 2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401  # torch types it so
    x, *layer, counters, layer_index, relu = inputs
    _save_layer(ctx, x, layer, output[1:], counters, layer_index, relu)


def _save_total(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
    _, _, *layer, counters, layer_index, relu = inputs
    _save_layer(ctx, output[1], layer, output[2:], counters, layer_index, relu)


def _save_layer(
    ctx: Any,  # noqa: ANN401
    x: Tensor, layer: list[Any], statistics: tuple[Tensor, ...], counters: Tensor | None, layer_index: int, relu: bool,
) -> None:  # fmt: skip
    weight, bias, *interpolated, _ = layer
    used_mean, inv_std, *others = statistics
    ctx.layer_index, ctx.share, ctx.relu = layer_index, 1.0, relu
    alpha = mean_shift = None
    if interpolated:
        interpolation = Interpolation(*interpolated)
        alpha, mean_shift, ctx.share = interpolation.alpha, others[-1], interpolation.batch_share
    ctx.save_for_backward(x, used_mean, inv_std, weight, bias, alpha, mean_shift, counters)
    ctx.mark_non_differentiable(*statistics)
    ctx.set_materialize_grads(False)  # zeros for the gradients of unused results would cost a launch each


def _backward(ctx: Any, grad_output: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    return _gradients(ctx, grad_output, None)


def _add_backward(
    ctx: Any,  # noqa: ANN401
    grad_output: Tensor | None,
    residual_grad: Tensor | None,
    *_: None,
) -> tuple[Tensor | None, ...]:
    grad_input, *others = _gradients(ctx, grad_output, residual_grad)
    return grad_input, grad_input, *others


def _gradients(
    ctx: Any,  # noqa: ANN401
    grad_output: Tensor | None,
    residual_grad: Tensor | None,
) -> tuple[Tensor | None, ...]:
    x, *layer = ctx.saved_tensors
    # Converted here, where a compiler sees it: whatever computes the gradients then writes them in this layout.
    grad_output = torch.zeros_like(x) if grad_output is None else dispatch.to_kernel_layout(grad_output)
    residual_grad = None if residual_grad is None else dispatch.to_kernel_layout(residual_grad)
    gradients = _batch_norm_backward(grad_output, residual_grad, x, *layer, ctx.layer_index, ctx.share, ctx.relu)
    is_plain = layer[4] is None
    return *gradients, *[None] * (4 if is_plain else 10)


for _operator in (batch_norm, interpolated_batch_norm):
    _operator.register_autograd(_backward, setup_context=_save)
for _operator in (add_batch_norm, add_interpolated_batch_norm):
    _operator.register_autograd(_add_backward, setup_context=_save_total)


def _row(counters: Tensor | None, layer_index: int) -> Tensor | None:
    return None if counters is None else counters[layer_index]


def _like(x: Tensor) -> Tensor:
    is_images = x.is_cuda and x.ndim == 4
    return torch.empty_like(x, memory_format=torch.channels_last) if is_images else torch.empty_like(x)


def _per_channel(x: Tensor, count: int) -> list[Tensor]:
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return [x.new_empty(x.shape[1], dtype=dtype) for _ in range(count)]
