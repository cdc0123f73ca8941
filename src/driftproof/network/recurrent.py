"""Recurrent layers that can be differentiated in evaluation mode."""

from typing import Any

import torch
from torch import nn

from driftproof.network.forward_override import is_overridden, replace_forward

__all__ = ["recurrent_forward", "use_native_recurrence"]


def use_native_recurrence(model: nn.Module) -> None:
    """Run recurrent layers without cuDNN, which computes no gradients in evaluation mode."""
    for layer in model.modules():
        if isinstance(layer, nn.RNNBase) and not is_overridden(layer):
            replace_forward(layer, recurrent_forward)


def recurrent_forward(layer: nn.RNNBase, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # as the layer's own
    """The forward of a recurrent layer, on PyTorch's own kernels."""
    with torch.backends.cudnn.flags(enabled=False):
        return type(layer).forward(layer, *args, **kwargs)
