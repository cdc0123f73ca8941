"""Normalization by itself, for a network that runs operation by operation.

It rounds as the fused operations do, so that a step in which everything is fused learns exactly what this one learns.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from driftproof.kernels.arrival_counters import zero_tickets
from driftproof.kernels.availability import can_compile
from driftproof.kernels.batch_norm_ops import backward_on_cuda, normalize_on_cuda

__all__ = ["KINDS", "normalize_alone", "suits"]

KINDS = (torch.float32, torch.bfloat16, torch.float16)
"""Types of images that the kernels read."""


def suits(x: Tensor) -> bool:
    """Whether images lie as the kernels read them: with their channels last, on a CUDA device that can have these."""
    there = x.is_cuda and x.ndim == 4 and x.dtype in KINDS
    return there and x.is_contiguous(memory_format=torch.channels_last) and can_compile(x.device)


def normalize_alone(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """As `normalize` of images that suit, neither rectified nor compiled."""
    normalized: Tensor = _Normalization.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
    return normalized


class _Normalization(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:  # noqa: ANN401
        tickets = zero_tickets(1, x.shape[1], x.device)
        y: Tensor
        y, mean, scale = normalize_on_cuda(x, weight, bias, tickets, 0, eps, False)
        ctx.save_for_backward(x, mean, scale, weight, bias, tickets)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return (*backward_on_cuda(gradient, None, *ctx.saved_tensors, 0, False), None)
