"""Convolutions with frozen weights, which keep no input for a weight gradient that nobody asks for.

Torch saves the input of every convolution for the gradient of its weight, even of a weight that does not train. The
gradient of the input needs the weight alone.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from driftproof.network.forward_override import is_overridden, is_overridden_by, replace_forward

__all__ = ["FrozenConvs", "cache_bf16_weights", "clear_cache", "conv_forward", "plain_conv_forward", "use_plain_convs"]

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MIN_BYTES = 2**26


class FrozenConvs:
    """The plain convolutions of a model, which save their input only while their weight requires a gradient.

    Run eagerly, inputs below 64 MiB are not worth the time of an autograd function written in Python. After one pass
    over images of a size, such layers run their own forward.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [layer for layer in model.modules() if type(layer) in _CONVS and _is_plain(layer)]
        self._matched: tuple[torch.Size, bool] | None = None
        self._is_settled = False
        self._replace()

    def match(self, images: Tensor, *, is_compiled: bool) -> None:
        """Choose the forward of each layer for the next pass.

        Args:
            images: The batch.
            is_compiled: Whether the pass is compiled; captured ones are recognized.
        """
        now = (images.shape, is_compiled or _is_capturing(images))
        if now != self._matched:
            self._matched, self._is_settled = now, now[1]
            self._replace()
        elif not self._is_settled:
            self._is_settled = True
            for layer in self._layers:
                if vars(layer).pop("_has_small_input", False):
                    del layer.forward
                    if type(layer) is nn.Conv2d:
                        replace_forward(layer, plain_conv_forward)

    def _replace(self) -> None:
        for layer in self._layers:
            if not is_overridden(layer) or is_overridden_by(layer, plain_conv_forward):
                replace_forward(layer, conv_forward)


def use_plain_convs(model: nn.Module) -> None:
    """Have the plain convolutions of a model that computes no gradients run `plain_conv_forward`."""
    for layer in model.modules():
        if type(layer) is nn.Conv2d and _is_plain(layer):
            replace_forward(layer, plain_conv_forward)


def cache_bf16_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Keep frozen weights in the dtype that autocast would cast them to in every pass.

    A captured step reads them, so their addresses stay as long as those of the weights do.
    """
    for layer in model.modules():
        if is_overridden_by(layer, conv_forward):
            weight, cache = cast("nn.Conv2d", layer).weight, vars(layer)
            before, now = cache.get("_bf16_from", ()), (weight.device, weight.data_ptr(), weight._version)
            if weight.requires_grad or before == now:
                continue
            if before[:2] == now[:2]:
                cache["_bf16_weight"].copy_(weight.detach())
            else:
                cache["_bf16_weight"] = weight.detach().to(dtype)
            cache["_bf16_from"] = now


def clear_cache(model: nn.Module) -> None:
    """Forget what is kept in layers, for a copy."""
    for layer in model.modules():
        for name in ("_bf16_weight", "_bf16_from", "_has_small_input"):
            vars(layer).pop(name, None)


def _is_plain(layer: nn.Module) -> bool:
    ordinary = getattr(layer, "padding_mode", None) == "zeros" and not isinstance(layer.padding, str)
    return ordinary and not is_overridden(layer)


def conv_forward(layer: nn.Conv2d, input: Tensor) -> Tensor:  # models may call it by torch's name
    """The forward of such a convolution."""
    x, parameters = input, layer._parameters  # attribute access on a module is slow, and this runs for every layer
    weight: Tensor | None = parameters.get("weight")
    bias: Tensor | None = parameters["bias"]
    if weight is None or weight.requires_grad or (bias is not None and bias.requires_grad) or x.ndim < weight.ndim:
        return type(layer).forward(layer, x)
    is_small = x.requires_grad and not _is_worth_it(x)
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
        cached = vars(layer).get("_bf16_weight", weight)
        x, weight, bias = x.to(dtype), cached.to(dtype), None if bias is None else bias.to(dtype)
    elif is_small:
        vars(layer)["_has_small_input"] = True
    if is_small or not (x.requires_grad and torch.is_grad_enabled()):
        return cast("Tensor", layer._conv_forward(x, weight, bias))
    window = (layer.stride, layer.padding, layer.dilation, layer.groups)
    convolved: Tensor = _FrozenWeightConv.apply(x, weight, bias, *window)  # type: ignore[no-untyped-call]
    return convolved


def plain_conv_forward(layer: nn.Conv2d, input: Tensor) -> Tensor:
    """What `nn.Conv2d.forward` computes, in half its host time."""
    weight, bias, window = layer._parameters["weight"], layer._parameters["bias"], (layer.stride, layer.padding)
    return torch.conv2d(input, weight, bias, *window, layer.dilation, layer.groups)  # type: ignore[arg-type]


def _is_worth_it(x: Tensor) -> bool:
    return torch.compiler.is_compiling() or x.nbytes >= _MIN_BYTES or _is_capturing(x)


def _is_capturing(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


class _FrozenWeightConv(torch.autograd.Function):
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
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (weight,) = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.window
        # The kernel reads the input's shape and strides, never its values. It would copy a tensor that is not dense.
        shaped_like_input = grad_output.new_empty_strided(*ctx.layout)
        grad_input, _, _ = torch.ops.aten.convolution_backward(
            *(grad_output, shaped_like_input, weight, None),
            *(stride, padding, dilation, False, [0] * len(stride), groups, [True, False, False]),
        )
        return (grad_input, None, None, None, None, None, None)
