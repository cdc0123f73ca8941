"""Counters by which the blocks of a reduction tell which of them finishes last."""

import torch
from torch import Tensor
from torch.library import custom_op

__all__ = ["MIN_BLOCK_CHANNELS", "new_counters", "zero_counters"]

MIN_BLOCK_CHANNELS = 16
"""The fewest channels that one block reduces."""


@custom_op("driftproof::new_counters", mutates_args=())
def new_counters(layers: int, channels: int, device: torch.device) -> Tensor:
    """Return one row of counters per layer. Every reduction leaves its row at zero.

    Args:
        layers: The number of layers; their reductions may run at the same time.
        channels: The largest number of channels among them.
        device: The device of the layers.
    """
    return zero_counters(layers, channels, device)


def zero_counters(layers: int, channels: int, device: torch.device) -> Tensor:
    """Return what `new_counters` returns, without the overhead of a PyTorch operator."""
    return torch.zeros(layers, -(-channels // MIN_BLOCK_CHANNELS), dtype=torch.int32, device=device)


@new_counters.register_fake
def _(layers: int, channels: int, device: torch.device) -> Tensor:
    return torch.empty(layers, -(-channels // MIN_BLOCK_CHANNELS), dtype=torch.int32, device=device)
