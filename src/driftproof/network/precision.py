"""With how many digits a network computes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Precision", "mixed", "restored", "tf32_mode"]

Precision = Literal["fp32", "tf32", "bf16"]


@contextmanager
def tf32_mode(precision: Precision | None) -> Iterator[None]:
    """Let matrix products and convolutions of 32-bit numbers round their factors to 19 bits, or forbid it.

    The switches belong to the process. Both directions of a network need them: a gradient is computed with what holds
    then, not with what held on the way forward. None leaves them alone; with `bf16` there is nothing left to round.

    Examples:
        >>> with rounding("fp32"):
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


def mixed(precision: Precision | None, device: torch.device) -> AbstractContextManager[object]:
    """Let a network compute in bfloat16 where that is what was asked for, or as the caller's autocast has it."""
    if precision == "bf16":
        kind = torch.bfloat16
    elif torch.is_autocast_enabled(device.type):
        kind = torch.get_autocast_dtype(device.type)
    else:
        return nullcontext()
    # Without the cache of cast weights. A recorded step would go on reading it after it has been cleared; and where
    # the caller's autocast spans the stream, it would hold the weights of the first batch for good.
    return torch.autocast(device.type, kind, cache_enabled=False)


def restored(values: Tensor, precision: Precision | None) -> Tensor:
    """What leaves a network that computed in bfloat16, in single precision again."""
    return values.float() if precision == "bf16" and values.dtype == torch.bfloat16 else values
