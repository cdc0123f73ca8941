"""Triton kernels for the quarantine of images: what takes two dozen small operations otherwise.

A judgement is one program over all images. `driftproof.quarantine` defines it, in PyTorch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from driftproof.kernels.launch import Launcher

__all__ = ["judge", "replace_bad"]

_BLOCK = 1024


@triton.jit(do_not_specialize_on_alignment=["largest", "log_scale", "good", "bad", "any_good", "next_log_scale"])
def _judge(
    largest, log_scale, good, bad, any_good, next_log_scale, images, far, limit, momentum,
    VOTES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.arange(0, BLOCK)
    exists = rows < images
    usual = tl.load(log_scale)
    excess = tl.log(tl.load(largest + rows, mask=exists, other=1.0).to(tl.float32)) - usual
    is_good = exists & (excess <= far)
    if VOTES:
        finite = exists & (excess < float("inf"))
        changed = tl.sum(finite.to(tl.int32)) > 2 * tl.sum(is_good.to(tl.int32))
        is_good = is_good | (finite & changed)
    tl.store(good + rows, is_good, mask=exists)
    tl.store(bad + rows, is_good == 0, mask=exists)
    tl.store(any_good, tl.max(is_good.to(tl.int32)) > 0)
    step = tl.minimum(tl.maximum(excess, -limit), limit)
    mean = tl.sum(tl.where(exists & (tl.abs(excess) < float("inf")), step, 0.0)) / images
    tl.store(next_log_scale, usual + momentum * mean)


@triton.jit(do_not_specialize_on_alignment=["images", "good", "out"])
def _replace_bad(images, good, out, rows, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    candidates = tl.arange(0, ROWS)
    is_good = tl.load(good + candidates, mask=candidates < rows, other=0) != 0
    first = tl.min(tl.where(is_good, candidates, ROWS))
    found = first < rows
    source = tl.where(tl.load(good + row) != 0, row, tl.where(found, first, 0))
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    values = tl.load(images + source.to(tl.int64) * size + columns, mask=inside, other=0.0)
    values = tl.where(found, values, float("nan"))
    tl.store(out + row.to(tl.int64) * size + columns, values, mask=inside)


_launch_judge, _launch_replace_bad = Launcher(_judge), Launcher(_replace_bad)


def judge(
    largest: Tensor, log_scale: Tensor, *, far: float, limit: float, momentum: float, votes: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return which images are good, which are not, whether any is, and the next scale.

    Args:
        largest: The largest absolute value of each image, (N,).
        log_scale: The logarithm of the usual one, a 0-d tensor in single precision.
        far: How far above it a good image may be.
        limit: How far from it an image counts.
        momentum: The share of the batch in the next scale.
        votes: Whether the majority is right.
    """
    good, bad = torch.empty((2, len(largest)), dtype=torch.bool, device=largest.device).unbind()
    any_good, next_log_scale = torch.empty_like(log_scale, dtype=torch.bool), torch.empty_like(log_scale)
    block = triton.next_power_of_2(len(largest))
    _launch_judge(
        largest.device, largest, log_scale, good, bad, any_good, next_log_scale, len(largest), far, limit, momentum,
        votes, block,
    )  # fmt: skip
    return good, bad, any_good, next_log_scale


def replace_bad(images: Tensor, good: Tensor) -> Tensor:
    """Return the batch with its first good image in the place of the bad ones, NaN if none is good.

    Args:
        images: The batch, each image in one piece of memory after the other.
        good: Which of them are good, (N,).
    """
    out, rows = torch.empty_like(images), len(images)
    size = images.numel() // rows
    block = triton.next_power_of_2(rows)
    grid = (rows, triton.cdiv(size, _BLOCK), 1)
    _launch_replace_bad(images.device, images, good, out, rows, size, block, _BLOCK, grid=grid)
    return out
