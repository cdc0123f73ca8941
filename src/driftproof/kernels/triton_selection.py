"""Which rows of a batch statistics are taken from, in Triton: those of selected samples."""

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["count_rows", "describe", "load_chosen"]

_TILE = tl.constexpr(256)


@triton.jit
def count_rows(selected, samples, positions, rows):
    """Return how many rows count, and whether all do because fewer than two are selected."""
    # Every program counts for itself: a launch takes longer than reading some hundred bytes.
    total = tl.zeros([_TILE], tl.int32)
    for start in range(0, samples, _TILE):
        places = start + tl.arange(0, _TILE)
        total += (tl.load(selected + places, mask=places < samples, other=0) != 0).to(tl.int32)
    count = tl.sum(total, 0) * positions
    return tl.where(count < 2, rows, count), count < 2


@triton.jit
def load_chosen(selected, rows, row, positions, takes_all, BLOCK_ROWS: tl.constexpr):
    """Return which rows of a tile count."""
    lines = row + tl.arange(0, BLOCK_ROWS)
    chosen = tl.load(selected + lines // positions, mask=lines < rows, other=0) != 0
    return (chosen | takes_all) & (lines < rows)


def describe(x: Tensor, selected: Tensor | None) -> tuple[Tensor | None, int, int]:
    """Return the arguments of a kernel that say so: the samples, how many there are, and the rows of each.

    Without a selection they are the same for all shapes, since a kernel is compiled for each kind of number.
    """
    return (None, 1, 1) if selected is None else (selected, x.shape[0], x.shape[2] * x.shape[3])
