"""Convolutions whose weights stay: nothing is kept for a gradient that nobody asks for.

Torch keeps the input of every convolution for the gradient of its weight, even of a weight that does not move. The
gradient of the input needs the weight alone.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from driftproof.network.forward_override import has_own_forward, replace_forward, runs

__all__ = ["convolve", "forget_rounded", "make_sparing", "round_weights"]

_KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def make_sparing(model: nn.Module) -> None:
    """Have the plain convolutions of `model` keep their input only while their weight wants a gradient."""
    for layer in model.modules():
        if type(layer) in _KINDS and _is_plain(layer):
            replace_forward(layer, convolve)


def round_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Keep weights that stay at hand in the type that autocast would give them, where it would do so in every pass.

    A recorded step goes on reading them, so they stay where they are for as long as the weights do.
    """
    for layer in model.modules():
        if runs(layer, convolve):
            weight, kept = cast("nn.Conv2d", layer).weight, vars(layer)
            before, now = kept.get("_rounded_from", ()), (weight.device, weight.data_ptr(), weight._version)
            if weight.requires_grad or before == now:
                continue
            if before[:2] == now[:2]:
                kept["_rounded"].copy_(weight.detach())
            else:
                kept["_rounded"] = weight.detach().to(dtype)
            kept["_rounded_from"] = now


def forget_rounded(model: nn.Module) -> None:
    """Undo `round_weights`, for a copy."""
    for layer in model.modules():
        for name in ("_rounded", "_rounded_from"):
            vars(layer).pop(name, None)


def _is_plain(layer: nn.Module) -> bool:
    ordinary = getattr(layer, "padding_mode", None) == "zeros" and not isinstance(layer.padding, str)
    return ordinary and not has_own_forward(layer)


def convolve(layer: nn.Conv2d, input: Tensor) -> Tensor:  # models may call it by torch's name
    """What such a convolution runs."""
    x, weight, bias = input, layer.weight, layer.bias
    if weight.requires_grad or (bias is not None and bias.requires_grad) or x.ndim < weight.ndim:
        return type(layer).forward(layer, x)
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
        rounded = vars(layer).get("_rounded", weight)
        x, weight, bias = x.to(dtype), rounded.to(dtype), None if bias is None else bias.to(dtype)
    if not (x.requires_grad and torch.is_grad_enabled()):
        return cast("Tensor", layer._conv_forward(x, weight, bias))
    window = (layer.stride, layer.padding, layer.dilation, layer.groups)
    convolved: Tensor = _SparingConvolution.apply(x, weight, bias, *window)  # type: ignore[no-untyped-call]
    return convolved


class _SparingConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # torch types it so
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.layout, ctx.window = (x.shape, x.stride()), (stride, padding, dilation, groups)
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (weight,) = ctx.saved_tensors
        (shape, strides), (stride, padding, dilation, groups) = ctx.layout, ctx.window
        to_input, _, _ = torch.ops.aten.convolution_backward(
            *(gradient, _stand_in(shape, strides, gradient), weight, None),
            *(stride, padding, dilation, False, [0] * len(stride), groups, [True, False, False]),
        )
        return (to_input, None, None, None, None, None, None)


def _stand_in(shape: torch.Size, strides: tuple[int, ...], gradient: Tensor) -> Tensor:
    """Of the input the kernel wants to know the shape and the layout alone: no value is ever written or read."""
    # On a CUDA device a tensor that only pretends to have memory would be copied into some.
    return gradient.new_empty_strided(shape, strides) if gradient.is_cuda else gradient.new_empty(1).expand(shape)
