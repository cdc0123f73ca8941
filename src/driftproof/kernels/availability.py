"""Whether the Triton kernels run on a device, and for which tensors."""

import warnings
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from driftproof.kernels.arrival_counters import zero_counters

__all__ = ["DTYPES", "can_compile", "is_supported", "runs_triton"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of activations that the kernels read."""


@cache
def can_compile(device: torch.device) -> bool:
    """Return whether Triton is installed and compiles for a CUDA device; warns where it is and does not."""
    error = None if find_spec("triton") is None else _find_error(device)
    if error is not None:
        warnings.warn(
            f"Batch norms run PyTorch's kernels, unfused, because Triton cannot compile ours: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
    return runs_triton(device)


@cache
def runs_triton(device: torch.device) -> bool:
    """Return what `can_compile` returns, and say nothing."""
    return find_spec("triton") is not None and _find_error(device) is None


def is_supported(x: Tensor) -> bool:
    """Return whether the kernels read `x` as it is: (N, C, H, W), channels last, on a CUDA device that runs them."""
    # Most inputs of a GPU that has no use for the kernels are recognized by their layout.
    if not x.is_cuda or x.ndim != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    return x.dtype in DTYPES and can_compile(x.device)


@cache
def _find_error(device: torch.device) -> str | None:
    """Return what goes wrong if Triton compiles a kernel; None if nothing does.

    Triton needs more than PyTorch: a C compiler and Python's headers at run time, and compute capability 7. It reports
    a missing one only when it compiles a kernel, so this compiles one.
    """
    try:
        _smoke_test(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton, the C compiler and the driver raise exceptions of their own
        return str(error).strip() or type(error).__name__
    return None


def _smoke_test(device: torch.device) -> None:
    from driftproof.kernels import triton_batch_norm

    x = torch.zeros(1, 1, 1, 2, device=device)
    with torch.cuda.device(device):
        triton_batch_norm.reduce(x, None, 1.0, None, zero_counters(1, 1, device)[0])
