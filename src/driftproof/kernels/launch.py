"""Launching a small Triton kernel without looking at its arguments anew."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

__all__ = ["Launcher"]


class Launcher:
    """Launches a kernel that was compiled before for arguments of the same kind.

    Triton binds, inspects and hashes all arguments of every launch, which takes several times as long as to launch.
    Here only the dtypes of tensors and the other arguments are compared, so the kernel must not be specialized on the
    alignment of tensors.

    Args:
        kernel: From `triton.jit`, with `do_not_specialize_on_alignment`.
    """

    def __init__(self, kernel: Any) -> None:  # noqa: ANN401  # Triton has no types
        self._kernel = kernel
        self._compiled: dict[Any, Any] = {}

    def __call__(self, device: torch.device, *arguments: Any, grid: tuple[int, int, int] = (1, 1, 1)) -> None:  # noqa: ANN401  # tensors and numbers
        """Launch the kernel.

        Args:
            device: Where all tensors are.
            arguments: Of the kernel, those that are constant to it included.
            grid: How many programs run.
        """
        key = (device, grid, *[one.dtype if isinstance(one, Tensor) else one for one in arguments])
        launch = self._compiled.get(key)
        with nullcontext() if torch.cuda.current_device() == device.index else torch.cuda.device(device):
            if launch is not None:
                launch(*arguments)
                return
            compiled = self._kernel[grid](*arguments)
            if compiled is not None:  # Triton's interpreter compiles nothing
                self._compiled[key] = compiled[grid]
