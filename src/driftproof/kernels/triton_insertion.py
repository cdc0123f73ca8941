"""A Triton kernel that inserts images into a bank: one program in place of six operations for each image.

`driftproof.memories.insertion` says what is computed, in PyTorch. Numbers are doubles, since ranks are exact.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["insert"]


@triton.jit
def _insert(
    keys, present, same_class, sizes, held, count, size, unit, capacity, quota,
    BY_CLASS: tl.constexpr, HAS_QUOTA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    places = tl.arange(0, BLOCK)
    first, exists, is_nobody = size - count, places < size, places == size
    inside = (tl.load(present + places, mask=places < first, other=0) != 0) & (places < first)
    number = tl.sum(inside.to(tl.float64), 0)
    sizes_now = tl.full([BLOCK], 1.0, tl.float64)
    if BY_CLASS:
        sizes_now = tl.load(sizes + places, mask=exists, other=0.0)
    for image in range(count):
        here = first + image
        enters = tl.load(present + here) != 0
        inside = inside | ((places == here) & enters)
        number += enters.to(tl.float64)
        if BY_CLASS:
            row = same_class + here * size + places
            joins = (tl.load(row, mask=exists, other=0) != 0) & enters
            sizes_now += joins.to(tl.float64)
        counts = tl.where(is_nobody, 4.0 * (size + 1) * (capacity + 0.5 - number), sizes_now)
        if HAS_QUOTA:
            counts = tl.maximum(counts, tl.where(places == here, quota + 0.5, 0.0))
            counts = tl.minimum(counts, tl.where(is_nobody, quota + 0.45, size + 1.0))
        key = tl.load(keys + image * (size + 1) + places, mask=places <= size, other=-float("inf"))
        value = key + tl.where(inside | is_nobody, 2.0 * unit * counts, 0.0)
        loser = tl.argmax(value, 0)
        leaves = tl.max(((places == loser) & inside).to(tl.int32), 0) != 0
        number -= leaves.to(tl.float64)
        if BY_CLASS:
            row = same_class + tl.minimum(loser, size - 1) * size + places
            parts = (tl.load(row, mask=exists, other=0) != 0) & leaves
            sizes_now -= parts.to(tl.float64)
        inside = inside & (places != loser)
    tl.store(held + places, inside, mask=exists)


def insert(
    keys: Tensor, present: Tensor, same_class: Tensor | None, *, unit: float, capacity: int, quota: int | None
) -> Tensor:
    """Return which candidates a bank holds once all images have come.

    Args:
        keys: What ranks the candidates, and nobody as the last, when each image comes, doubles, (N, M + 1).
        present: As in `insert_one_by_one`, (M,).
        same_class: As in `insert_one_by_one`, (M, M).
        unit: What a class counts for one image more, over two.
        capacity: As in `insert_one_by_one`.
        quota: As in `insert_one_by_one`.
    """
    count, size = keys.shape[0], keys.shape[1] - 1
    held, sizes = torch.empty_like(present), None
    if same_class is not None:
        sizes = same_class[:, : size - count].double() @ present[: size - count].double()
    with torch.cuda.device(keys.device):
        _insert[(1,)](
            keys, present, same_class, sizes, held, count, size, unit, float(capacity), float(quota or 0),
            BY_CLASS=same_class is not None, HAS_QUOTA=quota is not None, BLOCK=triton.next_power_of_2(size + 1),
        )  # fmt: skip
    return held
