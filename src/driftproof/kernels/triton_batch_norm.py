"""Batch normalization in two passes each way, for images that lie with their channels last.

A tensor of N images is a matrix here: one row for each pixel, one column for each channel. Every program of a reduction
sums some rows of some columns; the one that comes last adds the sums up. Sums are added in a fixed order, so results
repeat to the last bit. They are the same whether an addition or a rectifier is fused or comes apart: everything is
rounded where it would be stored, and added up in the same order. What is no number stays none, as with torch's
rectifier: a maximum would make it zero by itself, and nobody would learn that the batch was bad.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from driftproof.kernels.arrival_counters import NARROWEST

__all__ = ["apply", "apply_backward", "reduce", "reduce_backward"]

# As measured best on an H200, over the shapes of WRN-40-2 at batch 200.
_COLUMNS = 32
_APPLIED = 4096
_HALF = {"num_warps": 8, "AT_ONCE": 64}, 8192, 1
_SINGLE = {"num_warps": 4, "AT_ONCE": 128}, 4096, 2
"""By how many bytes a value has: options of a reduction, the values of a tile, the programs for each processor."""
_AS_WRITTEN = {"enable_fp_fusion": False}
"""No product is left unrounded because a sum follows it, which may come in this kernel or in another."""


@triton.jit
def _tile(data, rows, columns, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    across = column + tl.arange(0, COLUMNS)
    down = row + tl.arange(0, ROWS)
    inside = (down[:, None] < rows) & (across[None, :] < columns)
    places = down[:, None].to(tl.int64) * columns + across[None, :]
    return tl.load(data + places, mask=inside, other=0.0).to(tl.float32), places, inside


@triton.jit
def _last_to_arrive(tickets, column, programs):
    # What this program stored has to be there before its ticket is drawn.
    tl.debug_barrier()
    ticket = tl.atomic_add(tickets + column, 1, sem="acq_rel")
    last = ticket == programs - 1
    if last:
        tl.store(tickets + column, 0)
    return last


@triton.jit
def _statistics(
    x, addend, total, parts, tickets, mean, scale, rows, columns, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PROGRAMS: tl.constexpr, AT_ONCE: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    program, column = tl.program_id(0), tl.program_id(1) * COLUMNS
    across = column + tl.arange(0, COLUMNS)
    within = across < columns
    # Sums of squares lose digits where the mean is large: they are taken about one value of each channel.
    first = program * ROWS
    start = first.to(tl.int64) * columns + across
    shift = tl.load(x + start, mask=within, other=0.0).to(tl.float32)
    if ADDS:
        shift += tl.load(addend + start, mask=within, other=0.0).to(tl.float32)
        shift = shift.to(total.dtype.element_ty).to(tl.float32)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([ROWS, COLUMNS], tl.float32)
    count = 0.0
    for row in range(first, rows, PROGRAMS * ROWS):
        values, places, inside = _tile(x, rows, columns, row, column, ROWS, COLUMNS)
        if ADDS:
            values += tl.load(addend + places, mask=inside, other=0.0).to(tl.float32)
            stored = values.to(total.dtype.element_ty)
            tl.store(total + places, stored, mask=inside)
            values = stored.to(tl.float32)
        off = tl.where(inside, values - shift[None, :], 0.0)
        sums += off
        squares += off * off
        count += tl.minimum(rows - row, ROWS).to(tl.float32)
    summed = tl.sum(sums, 0)
    own_mean = summed / tl.maximum(count, 1.0)
    spread = tl.sum(squares, 0) - summed * own_mean
    slot = parts + program * 2 * columns + across
    tl.store(slot, shift + own_mean, mask=within)
    tl.store(slot + columns, spread, mask=within)
    if _last_to_arrive(tickets, tl.program_id(1), PROGRAMS):
        _merge(parts, mean, scale, rows, columns, across, within, eps, ROWS, COLUMNS, PROGRAMS, AT_ONCE)


@triton.jit
def _merge(
    parts, mean, scale, rows, columns, across, within, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PROGRAMS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    # How many rows each program had: whole rounds, and perhaps a tile or a part of one.
    rounds = rows // (PROGRAMS * ROWS)
    rest = rows - rounds * PROGRAMS * ROWS
    middle = tl.load(parts + across, mask=within, other=0.0, volatile=True)
    lean = tl.zeros([AT_ONCE, COLUMNS], tl.float32)
    spread = tl.zeros([AT_ONCE, COLUMNS], tl.float32)
    for start in range(0, PROGRAMS, AT_ONCE):
        which = start + tl.arange(0, AT_ONCE)
        counts = (rounds * ROWS + tl.minimum(tl.maximum(rest - which * ROWS, 0), ROWS)).to(tl.float32)
        there = (which[:, None] < PROGRAMS) & within[None, :]
        slots = parts + which[:, None] * 2 * columns + across[None, :]
        apart = tl.load(slots, mask=there, other=0.0, volatile=True) - middle[None, :]
        weighted = tl.where(there, apart * counts[:, None], 0.0)
        lean += weighted
        spread += tl.load(slots + columns, mask=there, other=0.0, volatile=True) + weighted * apart
    off = tl.sum(lean, 0) / rows
    variance = tl.maximum(tl.sum(spread, 0) / rows - off * off, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(mean + across, middle + off, mask=within)
    tl.store(scale + across, tl.rsqrt(variance + eps), mask=within)


@triton.jit
def _layer(mean, scale, weight, bias, across, within):
    centre = tl.load(mean + across, mask=within, other=0.0)
    spread = tl.load(scale + across, mask=within, other=0.0)
    slope = spread * tl.load(weight + across, mask=within, other=0.0)
    return centre, spread, slope, tl.load(bias + across, mask=within, other=0.0)


@triton.jit
def _normalized(
    x, mean, scale, weight, bias, y, rows, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * COLUMNS
    across = column + tl.arange(0, COLUMNS)
    within = across < columns
    centre, _, slope, offset = _layer(mean, scale, weight, bias, across, within)
    values, places, inside = _tile(x, rows, columns, tl.program_id(0) * ROWS, column, ROWS, COLUMNS)
    out = (values - centre[None, :]) * slope[None, :] + offset[None, :]
    if RELU:
        out = tl.maximum(out, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + places, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _arriving(
    gradient, x, centre, spread, slope, offset, rows, columns, row, column,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    values, places, inside = _tile(x, rows, columns, row, column, ROWS, COLUMNS)
    arrived = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
    centred = values - centre[None, :]
    if RELU:
        stored = (centred * slope[None, :] + offset[None, :]).to(gradient.dtype.element_ty).to(tl.float32)
        arrived = tl.where(stored <= 0, 0.0, arrived)
    return arrived, centred * spread[None, :], places, inside


@triton.jit
def _gradient_sums(
    gradient, x, mean, scale, weight, bias, parts, tickets, to_weight, to_bias, rows, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PROGRAMS: tl.constexpr, AT_ONCE: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    program, column = tl.program_id(0), tl.program_id(1) * COLUMNS
    across = column + tl.arange(0, COLUMNS)
    within = across < columns
    centre, spread, slope, offset = _layer(mean, scale, weight, bias, across, within)
    plain = tl.zeros([ROWS, COLUMNS], tl.float32)
    scaled = tl.zeros([ROWS, COLUMNS], tl.float32)
    for row in range(program * ROWS, rows, PROGRAMS * ROWS):
        arrived, normal, _, _ = _arriving(
            gradient, x, centre, spread, slope, offset, rows, columns, row, column, ROWS, COLUMNS, RELU
        )
        plain += arrived
        scaled += arrived * normal
    slot = parts + program * 2 * columns + across
    tl.store(slot, tl.sum(plain, 0), mask=within)
    tl.store(slot + columns, tl.sum(scaled, 0), mask=within)
    if _last_to_arrive(tickets, tl.program_id(1), PROGRAMS):
        _add_up(parts, to_weight, to_bias, columns, across, within, COLUMNS, PROGRAMS, AT_ONCE)


@triton.jit
def _add_up(
    parts, to_weight, to_bias, columns, across, within,
    COLUMNS: tl.constexpr, PROGRAMS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    plain = tl.zeros([AT_ONCE, COLUMNS], tl.float32)
    scaled = tl.zeros([AT_ONCE, COLUMNS], tl.float32)
    for start in range(0, PROGRAMS, AT_ONCE):
        which = start + tl.arange(0, AT_ONCE)
        there = (which[:, None] < PROGRAMS) & within[None, :]
        slots = parts + which[:, None] * 2 * columns + across[None, :]
        plain += tl.load(slots, mask=there, other=0.0, volatile=True)
        scaled += tl.load(slots + columns, mask=there, other=0.0, volatile=True)
    tl.store(to_bias + across, tl.sum(plain, 0), mask=within)
    tl.store(to_weight + across, tl.sum(scaled, 0), mask=within)


@triton.jit
def _gradient(
    gradient, x, mean, scale, weight, bias, to_weight, to_bias, beside, out, rows, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RELU: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    across = column + tl.arange(0, COLUMNS)
    within = across < columns
    centre, spread, slope, offset = _layer(mean, scale, weight, bias, across, within)
    level = tl.load(to_bias + across, mask=within, other=0.0) / rows
    tilt = tl.load(to_weight + across, mask=within, other=0.0) / rows
    arrived, normal, places, inside = _arriving(
        gradient, x, centre, spread, slope, offset, rows, columns, row, column, ROWS, COLUMNS, RELU
    )
    leaving = slope[None, :] * (arrived - level[None, :] - normal * tilt[None, :])
    if ADDS:
        leaving = leaving.to(out.dtype.element_ty).to(tl.float32)
        leaving += tl.load(beside + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + places, leaving.to(out.dtype.element_ty), mask=inside)


class _Plan(NamedTuple):
    """How the work on images of one shape is divided into programs.

    Attributes:
        shape: Pixels and channels.
        reduced: The grid of a reduction, and its options.
        parts: Where the programs of a reduction leave their sums, as a shape.
        applied: The grid of a kernel that looks at each value by itself, and its options.
    """

    shape: tuple[int, int]
    reduced: tuple[tuple[int, int], dict[str, int]]
    parts: tuple[int, int, int]
    applied: tuple[tuple[int, int], dict[str, int]]


# An eager step asks for it four times in every layer, and working it out takes as long as a launch.
@lru_cache(maxsize=1024)
def _planned(rows: int, columns: int, size: int, device: torch.device) -> _Plan:
    wide = max(NARROWEST, min(_COLUMNS, 1 << (columns - 1).bit_length()))
    across = -(-columns // wide)
    options, tile, waves = _HALF if size == 2 else _SINGLE
    high = tile // wide
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    programs = max(1, min(-(-rows // high), waves * processors // across))
    flat = _APPLIED // wide
    return _Plan(
        shape=(rows, columns),
        reduced=(
            (programs, across),
            {"ROWS": high, "COLUMNS": wide, "PROGRAMS": programs, **options, **_AS_WRITTEN},
        ),
        parts=(programs, 2, columns),
        applied=((-(-rows // flat), across), {"ROWS": flat, "COLUMNS": wide, **_AS_WRITTEN}),
    )


def _plan(x: Tensor) -> _Plan:
    return _planned(x.numel() // x.shape[1], x.shape[1], x.element_size(), x.device)


def _numbers(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def reduce(x: Tensor, addend: Tensor | None, eps: float, tickets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of both, its mean per channel, and one over its standard deviation."""
    total = x if addend is None else torch.empty_like(x)
    plan = _plan(x)
    grid, options = plan.reduced
    mean, scale, parts = (_numbers(x, *shape) for shape in ((x.shape[1],), (x.shape[1],), plan.parts))
    beside = x if addend is None else addend
    _statistics[grid](
        x, beside, total, parts, tickets, mean, scale, *plan.shape, eps, **options, ADDS=addend is not None
    )
    return total, mean, scale


def apply(x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
    """What was normalized, scaled and shifted, and cut off at zero if asked for."""
    y = torch.empty_like(x)
    plan = _plan(x)
    grid, options = plan.applied
    _normalized[grid](x, mean, scale, weight, bias, y, *plan.shape, **options, RELU=relu)
    return y


def reduce_backward(
    gradient: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor, tickets: Tensor,
    *, relu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of weight and bias."""
    plan = _plan(x)
    grid, options = plan.reduced
    to_weight, to_bias, parts = (_numbers(x, *shape) for shape in ((x.shape[1],), (x.shape[1],), plan.parts))
    _gradient_sums[grid](
        gradient, x, mean, scale, weight, bias, parts, tickets, to_weight, to_bias, *plan.shape, **options, RELU=relu
    )
    return to_weight, to_bias


def apply_backward(
    gradient: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor,
    to_weight: Tensor, to_bias: Tensor, beside: Tensor | None, *, relu: bool,
) -> Tensor:  # fmt: skip
    """The gradient of the input, and what came to it on another way."""
    out = torch.empty_like(x)
    plan = _plan(x)
    grid, options = plan.applied
    other = x if beside is None else beside
    _gradient[grid](
        gradient, x, mean, scale, weight, bias, to_weight, to_bias, other, out, *plan.shape,
        **options, RELU=relu, ADDS=beside is not None,
    )  # fmt: skip
    return out
