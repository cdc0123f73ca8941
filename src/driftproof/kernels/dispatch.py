"""Forward and backward of batch norm: Triton kernels where they run, plain PyTorch elsewhere."""

import torch
from torch import Tensor

from driftproof.kernels import reference_batch_norm
from driftproof.kernels.arrival_counters import zero_counters
from driftproof.kernels.availability import DTYPES, can_compile
from driftproof.kernels.interpolation import Interpolation

__all__ = ["backward", "forward", "to_kernel_layout"]


def forward(
    x: Tensor,
    addend: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    interpolation: Interpolation | None,
    eps: float,
    counters: Tensor | None,
    selected: Tensor | None = None,
    *,
    relu: bool,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return the normalized sum of x and addend, the sum itself, and the statistics.

    Args:
        x: Activations, with channels along dimension 1.
        addend: Added first; None adds nothing.
        weight: Scale of each channel, (C,).
        bias: Shift of each channel, (C,).
        interpolation: What the batch statistics are mixed with; None uses them as they are.
        eps: Added to the variance.
        counters: The layer's row of `new_counters`; None makes one.
        selected: The samples that statistics are taken from, boolean, (N,); None is all of them, and so is a selection
            that leaves a channel fewer than two values.
        relu: Whether a ReLU follows.

    Returns:
        The result, the sum, and the statistics, each of shape (C,): the mean and one over the standard deviation that
        the layer normalizes with. With an interpolation also the mean and the variance of the stream after this batch
        (of the batch without stream statistics), and `mean_shift`: the distance from the batch's mean to the stream's,
        over the standard deviation.
    """
    x = to_kernel_layout(x)
    addend = None if addend is None else to_kernel_layout(addend)
    if not _runs_triton(x):
        total = x if addend is None else x + addend
        statistics = reference_batch_norm.compute_statistics(total, eps, interpolation, selected)
        mean, inv_std, *_ = statistics
        return reference_batch_norm.apply(total, mean, inv_std, weight, bias, relu=relu), total, statistics
    from driftproof.kernels import triton_batch_norm

    with torch.cuda.device(x.device):
        counters = _own_counters(counters, x)
        total, statistics = triton_batch_norm.reduce(x, addend, eps, interpolation, counters, selected)
        mean, inv_std, *_ = statistics
        return triton_batch_norm.apply(total, mean, inv_std, weight, bias, relu=relu), total, statistics


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
    counters: Tensor | None,
    selected: Tensor | None = None,
    *,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias.

    With x̂ the normalized x, dy the gradient behind the ReLU and k = α · share, the gradient of x is
    weight · inv_std · (dy − m − x̂ · k · mean(dy x̂)) with m = k · mean(dy) + mean_shift · k · mean(dy x̂). The source
    statistics and the history of the stream are constants. A plain batch norm has k = 1 and no shift. With selected
    samples the sums are over all, the means are sums over the number of selected values, and only the gradient of
    selected samples subtracts anything.

    Args:
        grad_output: The gradient of the result.
        residual_grad: A gradient that reaches x on another path, and is added; None if there is none.
        x: What was normalized.
        mean: The mean that the layer normalized with.
        inv_std: One over the standard deviation that it normalized with.
        weight: As in `forward`.
        bias: As in `forward`.
        alpha: `Interpolation.alpha`; None for a plain batch norm.
        mean_shift: From `forward`; None for a plain batch norm.
        share: `Interpolation.batch_share`.
        counters: As in `forward`.
        selected: As in `forward`.
        relu: As in `forward`.
    """
    grad_output, x = to_kernel_layout(grad_output), to_kernel_layout(x)
    residual_grad = None if residual_grad is None else to_kernel_layout(residual_grad)
    layer = (mean, inv_std, weight, bias)
    if not _runs_triton(x):
        how = (alpha, mean_shift, share, selected)
        return reference_batch_norm.backward(grad_output, residual_grad, x, *layer, *how, relu=relu)
    from driftproof.kernels import triton_batch_norm

    with torch.cuda.device(x.device):
        sums = triton_batch_norm.reduce_backward(
            grad_output, x, *layer, alpha, mean_shift, share, _own_counters(counters, x), selected, relu=relu
        )
        grad_input = triton_batch_norm.apply_backward(grad_output, x, *layer, sums, residual_grad, selected, relu=relu)
    return grad_input, sums.grad_weight, sums.grad_bias


def to_kernel_layout(x: Tensor) -> Tensor:
    """Return `x` with channels last if it is a batch of images on a CUDA device."""
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.ndim == 4 else x


def _runs_triton(x: Tensor) -> bool:
    return x.is_cuda and x.ndim == 4 and x.dtype in DTYPES and can_compile(x.device)


def _own_counters(counters: Tensor | None, x: Tensor) -> Tensor:
    return zero_counters(1, x.shape[1], x.device)[0] if counters is None else counters
