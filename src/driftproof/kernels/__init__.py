"""Fused batch norm kernels, as eager functions and as PyTorch operators."""

import torch

from driftproof.kernels.arrival_counters import new_counters
from driftproof.kernels.availability import DTYPES, can_compile, is_supported, runs_triton
from driftproof.kernels.batch_norm_ops import traced_interpolated_batch_norm
from driftproof.kernels.eager_batch_norm import batch_norm, interpolated_batch_norm

__all__ = [
    "DTYPES",
    "batch_norm",
    "can_compile",
    "interpolated_batch_norm",
    "is_supported",
    "new_counters",
    "ops",
    "runs_triton",
    "traced_interpolated_batch_norm",
]

ops = torch.ops.driftproof
"""The operators of `batch_norm_ops` as PyTorch registers them."""
