"""Batch norms that round alike, however much of a network is fused with them.

Selection asks whether a difference is below zero, and what it selects decides what comes next. So an engine that fuses
normalization with its neighbours ends where the eager one does only if both round every value alike. The kernels of
`driftproof.kernels` do; with the batch's own statistics and channels last on a CUDA device, every engine uses them.
"""

import torch
from torch import Tensor, nn

from driftproof.kernels import normalize_alone, suits
from driftproof.network.forward_override import has_own_forward, replace_forward

__all__ = ["make_alike", "normalize"]


def make_alike(model: nn.Module) -> None:
    """Have the batch norms of `model` run our kernels where those apply."""
    for layer in model.modules():
        if type(layer) is nn.BatchNorm2d and not has_own_forward(layer):
            replace_forward(layer, normalize)


def normalize(layer: nn.BatchNorm2d, input: Tensor) -> Tensor:  # models may call it by torch's name
    """What such a batch norm runs."""
    of_the_batch = layer.running_mean is None and layer.running_var is None
    learned = layer.weight is not None and layer.bias is not None
    # A compiler is shown what torch has, and fuses that.
    if of_the_batch and learned and not torch.compiler.is_compiling() and suits(input) and _has_variance(input):
        return normalize_alone(input, layer.weight, layer.bias, layer.eps)
    return type(layer).forward(layer, input)


def _has_variance(images: Tensor) -> bool:
    """Whether there are several values per channel; torch refuses a single one."""
    return images.numel() > images.shape[1]
