"""How batch norm kernels divide their work."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from driftproof.kernels.arrival_counters import MIN_BLOCK_CHANNELS

__all__ = ["LaunchConfig", "launch_config"]

# The fastest on an H200 over the shapes of WRN-40-2 at batch 200.
_MAX_BLOCK_CHANNELS = 32
_APPLY_TILE = 4096
_HALF = {"num_warps": 8, "MERGE_ROWS": 64}, 8192, 1
_SINGLE = {"num_warps": 4, "MERGE_ROWS": 128}, 4096, 2
"""For values of 2 and of 4 bytes: options of a reduction, values per tile, programs per multiprocessor."""
_NO_FMA = {"enable_fp_fusion": False}
"""Rounds every product before it is added, because the addition may be in this kernel or in another."""


class LaunchConfig(NamedTuple):
    """How the work on images of one shape is divided into programs.

    Attributes:
        shape: Rows and channels.
        reduce: The grid of a reduction, programs first, and its options.
        apply: The grid of an elementwise kernel, and its options.
    """

    shape: tuple[int, int]
    reduce: tuple[tuple[int, int], dict[str, int]]
    apply: tuple[tuple[int, int], dict[str, int]]


def launch_config(x: Tensor) -> LaunchConfig:
    """Return how the work on images of the shape of `x` is divided."""
    return _launch_config_for(x.numel() // x.shape[1], x.shape[1], x.element_size(), x.device)


# Cached, because an eager step needs it four times per layer and computing it takes as long as a launch.
@lru_cache(maxsize=1024)
def _launch_config_for(rows: int, channels: int, itemsize: int, device: torch.device) -> LaunchConfig:
    block_channels = max(MIN_BLOCK_CHANNELS, min(_MAX_BLOCK_CHANNELS, 1 << (channels - 1).bit_length()))
    channel_blocks = -(-channels // block_channels)
    options, tile, waves = _HALF if itemsize == 2 else _SINGLE
    reduce_rows, apply_rows = tile // block_channels, _APPLY_TILE // block_channels
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    programs = max(1, min(-(-rows // reduce_rows), waves * multiprocessors // channel_blocks))
    block = {"BLOCK_CHANNELS": block_channels, **_NO_FMA}
    reduction = {"BLOCK_ROWS": reduce_rows, "PROGRAMS": programs, **block, **options}
    return LaunchConfig(
        shape=(rows, channels),
        reduce=((programs, channel_blocks), reduction),
        apply=((-(-rows // apply_rows), channel_blocks), {"BLOCK_ROWS": apply_rows, **block}),
    )
