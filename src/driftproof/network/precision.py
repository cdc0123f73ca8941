"""The numeric precision of a network's forward and backward passes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Precision", "autocast_mode", "tf32_mode", "to_float32"]

Precision = Literal["fp32", "tf32", "bf16"]


@contextmanager
def tf32_mode(precision: Precision | None) -> Iterator[None]:
    """Allow TF32 in matrix products and convolutions ("tf32"), or forbid it ("fp32").

    The switches belong to the process and also decide how gradients are computed, so the context must span the backward
    pass. None and "bf16" leave them alone.

    Examples:
        >>> with tf32_mode("fp32"):
        ...     torch.backends.cudnn.allow_tf32
        False
    """
    if precision not in ("fp32", "tf32"):
        yield
        return
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def autocast_mode(precision: Precision | None, device: torch.device) -> AbstractContextManager[object]:
    """Autocast to bfloat16 for "bf16", else as the caller's own autocast has it."""
    if precision == "bf16":
        dtype = torch.bfloat16
    elif torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    else:
        return nullcontext()
    # Without the cache of cast weights: a captured step would read it after it was cleared, and under an autocast that
    # spans the whole stream it would hold the weights of the first batch for good.
    return torch.autocast(device.type, dtype, cache_enabled=False)


def to_float32(values: Tensor, precision: Precision | None) -> Tensor:
    """Cast what leaves a bfloat16 network back to single precision."""
    return values.float() if precision == "bf16" and values.dtype == torch.bfloat16 else values
