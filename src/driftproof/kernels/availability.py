"""Whether the kernels can be had on this machine."""

import warnings
from functools import cache
from importlib.util import find_spec

import torch

from driftproof.kernels.arrival_counters import zero_tickets
from driftproof.kernels.batch_norm_ops import normalize_on_cuda

__all__ = ["can_compile"]


@cache
def can_compile(device: torch.device) -> bool:
    """Whether Triton is there and compiles for a CUDA device.

    It asks for more than PyTorch does: a C compiler and Python's headers at run time, and a device of compute
    capability 7. Where one is missing it says so when something is first compiled, so that is tried here.
    """
    if find_spec("triton") is None:
        return False
    try:
        _try_out(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of the compiler, the host's or the device's; each has exceptions of its own
        warnings.warn(
            f"Batch norms run PyTorch's kernels, and nothing is fused with them, since Triton cannot compile ours: "
            f"{str(error).strip() or type(error).__name__}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def _try_out(device: torch.device) -> None:
    x, layer = torch.zeros(1, 1, 1, 2, device=device), torch.zeros(1, device=device)
    normalize_on_cuda(x, layer, layer, zero_tickets(1, 1, device), 0, 1.0, False)
