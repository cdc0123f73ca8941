"""Triton kernels for batch norm with channels last: two passes over memory forward, two backward.

A batch of images is a matrix here: one row per pixel, one column per channel. Each program of a reduction sums some
rows of a block of channels; the program that finishes last merges the sums and does all arithmetic per channel. Sums
are added in a fixed order, so results repeat to the last bit. Fusing an addition or a ReLU changes no bit: every value
is rounded where it would be stored, and added in the same order. NaN propagates through the ReLU, as in PyTorch; plain
`tl.maximum` would turn it into 0 and hide a bad batch.

A pointer that is None is a compile-time constant: plain and interpolated batch norm are two versions of one kernel.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from driftproof.kernels.arrival_counters import MIN_BLOCK_CHANNELS
from driftproof.kernels.interpolation import Interpolation

__all__ = ["GradientSums", "LaunchConfig", "apply", "apply_backward", "reduce", "reduce_backward"]

# The fastest on an H200 over the shapes of WRN-40-2 at batch 200.
_MAX_BLOCK_CHANNELS = 32
_APPLY_TILE = 4096
_HALF = {"num_warps": 8, "MERGE_ROWS": 64}, 8192, 1
_SINGLE = {"num_warps": 4, "MERGE_ROWS": 128}, 4096, 2
"""For values of 2 and of 4 bytes: options of a reduction, values per tile, programs per multiprocessor."""
_NO_FMA = {"enable_fp_fusion": False}
"""Rounds every product before it is added, because the addition may be in this kernel or in another."""


@triton.jit
def _load_tile(data, rows, channels, row, channel, BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr):
    columns = channel + tl.arange(0, BLOCK_CHANNELS)
    lines = row + tl.arange(0, BLOCK_ROWS)
    mask = (lines[:, None] < rows) & (columns[None, :] < channels)
    offsets = lines[:, None].to(tl.int64) * channels + columns[None, :]
    return tl.load(data + offsets, mask=mask, other=0.0).to(tl.float32), offsets, mask


@triton.jit
def _is_last_block(counters, index, programs):
    # All threads of this program must have stored their partial sums before its arrival counts.
    tl.debug_barrier()
    arrived = tl.atomic_add(counters + index, 1, sem="acq_rel")
    last = arrived == programs - 1
    if last:
        tl.store(counters + index, 0)
    return last


@triton.jit
def _lerp(start, end, weight):
    # As torch.lerp: exact at both ends.
    return tl.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1.0 - weight))


@triton.jit
def _load_channels(values, columns, in_range):
    return tl.load(values + columns, mask=in_range, other=0.0).to(tl.float32)


@triton.jit
def _batch_norm_reduce(
    x, addend, total, partials, counters, used_mean, inv_std,
    source_mean, source_var, stream_mean, stream_var, alpha, mean, var, mean_shift,
    rows, channels, eps, share,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, PROGRAMS: tl.constexpr, MERGE_ROWS: tl.constexpr,
    ALPHA_STRIDE: tl.constexpr,
):  # fmt: skip
    program, channel = tl.program_id(0), tl.program_id(1) * BLOCK_CHANNELS
    columns = channel + tl.arange(0, BLOCK_CHANNELS)
    in_range = columns < channels
    # Sums of squares lose digits where the mean is large, so they are taken about one value of each channel.
    first = program * BLOCK_ROWS
    start = first.to(tl.int64) * channels + columns
    pivot = tl.load(x + start, mask=in_range, other=0.0).to(tl.float32)
    if addend is not None:
        pivot += tl.load(addend + start, mask=in_range, other=0.0).to(tl.float32)
        pivot = pivot.to(total.dtype.element_ty).to(tl.float32)
    delta_sum = tl.zeros([BLOCK_ROWS, BLOCK_CHANNELS], tl.float32)
    square_sum = tl.zeros([BLOCK_ROWS, BLOCK_CHANNELS], tl.float32)
    count = 0.0
    for row in range(first, rows, PROGRAMS * BLOCK_ROWS):
        values, offsets, mask = _load_tile(x, rows, channels, row, channel, BLOCK_ROWS, BLOCK_CHANNELS)
        if addend is not None:
            values += tl.load(addend + offsets, mask=mask, other=0.0).to(tl.float32)
            stored = values.to(total.dtype.element_ty)
            tl.store(total + offsets, stored, mask=mask)
            values = stored.to(tl.float32)
        delta = tl.where(mask, values - pivot[None, :], 0.0)
        delta_sum += delta
        square_sum += delta * delta
        count += tl.minimum(rows - row, BLOCK_ROWS).to(tl.float32)
    summed = tl.sum(delta_sum, 0)
    delta_mean = summed / tl.maximum(count, 1.0)
    m2 = tl.sum(square_sum, 0) - summed * delta_mean
    slot = partials + program * 2 * channels + columns
    tl.store(slot, pivot + delta_mean, mask=in_range)
    tl.store(slot + channels, m2, mask=in_range)
    if _is_last_block(counters, tl.program_id(1), PROGRAMS):
        batch_mean, batch_var = _merge_moments(
            partials, rows, channels, columns, in_range, BLOCK_ROWS, BLOCK_CHANNELS, PROGRAMS, MERGE_ROWS
        )
        if alpha is None:
            tl.store(used_mean + columns, batch_mean, mask=in_range)
            tl.store(inv_std + columns, tl.rsqrt(batch_var + eps), mask=in_range)
        else:
            _interpolate(
                batch_mean, batch_var, used_mean, inv_std, source_mean, source_var, stream_mean, stream_var, alpha,
                mean, var, mean_shift, columns, in_range, eps, share, ALPHA_STRIDE,
            )  # fmt: skip


@triton.jit
def _merge_moments(
    partials, rows, channels, columns, in_range,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, PROGRAMS: tl.constexpr, MERGE_ROWS: tl.constexpr,
):  # fmt: skip
    # Each program had as many rows as there were whole rounds, and perhaps one more tile or a part of it.
    rounds = rows // (PROGRAMS * BLOCK_ROWS)
    rest = rows - rounds * PROGRAMS * BLOCK_ROWS
    pivot = tl.load(partials + columns, mask=in_range, other=0.0, volatile=True)
    delta_sum = tl.zeros([MERGE_ROWS, BLOCK_CHANNELS], tl.float32)
    m2 = tl.zeros([MERGE_ROWS, BLOCK_CHANNELS], tl.float32)
    for start in range(0, PROGRAMS, MERGE_ROWS):
        programs = start + tl.arange(0, MERGE_ROWS)
        tail = tl.minimum(tl.maximum(rest - programs * BLOCK_ROWS, 0), BLOCK_ROWS)
        counts = (rounds * BLOCK_ROWS + tail).to(tl.float32)
        mask = (programs[:, None] < PROGRAMS) & in_range[None, :]
        slots = partials + programs[:, None] * 2 * channels + columns[None, :]
        delta = tl.load(slots, mask=mask, other=0.0, volatile=True) - pivot[None, :]
        weighted = tl.where(mask, delta * counts[:, None], 0.0)
        delta_sum += weighted
        m2 += tl.load(slots + channels, mask=mask, other=0.0, volatile=True) + weighted * delta
    delta_mean = tl.sum(delta_sum, 0) / rows
    var = tl.maximum(tl.sum(m2, 0) / rows - delta_mean * delta_mean, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return pivot + delta_mean, var


@triton.jit
def _interpolate(
    batch_mean, batch_var, used_mean, inv_std, source_mean, source_var, stream_mean, stream_var, alpha,
    mean, var, mean_shift, columns, in_range, eps, share, ALPHA_STRIDE: tl.constexpr,
):  # fmt: skip
    new_mean, new_var = batch_mean, batch_var
    if stream_mean is not None:
        new_mean = _lerp(_load_channels(stream_mean, columns, in_range), batch_mean, share)
        new_var = _lerp(_load_channels(stream_var, columns, in_range), batch_var, share)
    tl.store(mean + columns, new_mean, mask=in_range)
    tl.store(var + columns, new_var, mask=in_range)
    source = _load_channels(source_mean, columns, in_range)
    of_batch = _load_channels(alpha, columns * ALPHA_STRIDE, in_range)
    of_source = 1.0 - of_batch
    distance = new_mean - source
    mixed_var = of_batch * new_var + of_source * _load_channels(source_var, columns, in_range)
    scale = tl.rsqrt(mixed_var + of_batch * of_source * (distance * distance) + eps)
    tl.store(used_mean + columns, _lerp(source, new_mean, of_batch), mask=in_range)
    tl.store(inv_std + columns, scale, mask=in_range)
    tl.store(mean_shift + columns, (new_mean - batch_mean) * scale, mask=in_range)


@triton.jit
def _load_layer(mean, inv_std, weight, bias, columns, in_range):
    center = tl.load(mean + columns, mask=in_range, other=0.0)
    scale = tl.load(inv_std + columns, mask=in_range, other=0.0)
    slope = scale * tl.load(weight + columns, mask=in_range, other=0.0)
    return center, scale, slope, tl.load(bias + columns, mask=in_range, other=0.0)


@triton.jit
def _batch_norm_apply(
    x, mean, inv_std, weight, bias, y, rows, channels,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(1) * BLOCK_CHANNELS
    columns = channel + tl.arange(0, BLOCK_CHANNELS)
    in_range = columns < channels
    center, _, slope, offset = _load_layer(mean, inv_std, weight, bias, columns, in_range)
    row = tl.program_id(0) * BLOCK_ROWS
    values, offsets, mask = _load_tile(x, rows, channels, row, channel, BLOCK_ROWS, BLOCK_CHANNELS)
    out = (values - center[None, :]) * slope[None, :] + offset[None, :]
    if RELU:
        out = tl.maximum(out, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + offsets, out.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _grad_tile(
    grad_output, x, center, scale, slope, offset, rows, channels, row, channel,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    values, offsets, mask = _load_tile(x, rows, channels, row, channel, BLOCK_ROWS, BLOCK_CHANNELS)
    dy = tl.load(grad_output + offsets, mask=mask, other=0.0).to(tl.float32)
    centered = values - center[None, :]
    if RELU:
        stored = (centered * slope[None, :] + offset[None, :]).to(grad_output.dtype.element_ty).to(tl.float32)
        dy = tl.where(stored <= 0, 0.0, dy)
    return dy, centered * scale[None, :], offsets, mask


@triton.jit
def _batch_norm_backward_reduce(
    grad_output, x, mean, inv_std, weight, bias, partials, counters, grad_weight, grad_bias,
    alpha, mean_shift, mean_dy, mean_dy_xhat, rows, channels, share,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, PROGRAMS: tl.constexpr, MERGE_ROWS: tl.constexpr,
    RELU: tl.constexpr, ALPHA_STRIDE: tl.constexpr,
):  # fmt: skip
    program, channel = tl.program_id(0), tl.program_id(1) * BLOCK_CHANNELS
    columns = channel + tl.arange(0, BLOCK_CHANNELS)
    in_range = columns < channels
    center, scale, slope, offset = _load_layer(mean, inv_std, weight, bias, columns, in_range)
    dy_sum = tl.zeros([BLOCK_ROWS, BLOCK_CHANNELS], tl.float32)
    dy_xhat_sum = tl.zeros([BLOCK_ROWS, BLOCK_CHANNELS], tl.float32)
    for row in range(program * BLOCK_ROWS, rows, PROGRAMS * BLOCK_ROWS):
        dy, xhat, _, _ = _grad_tile(
            grad_output, x, center, scale, slope, offset, rows, channels, row, channel, BLOCK_ROWS, BLOCK_CHANNELS, RELU
        )
        dy_sum += dy
        dy_xhat_sum += dy * xhat
    slot = partials + program * 2 * channels + columns
    tl.store(slot, tl.sum(dy_sum, 0), mask=in_range)
    tl.store(slot + channels, tl.sum(dy_xhat_sum, 0), mask=in_range)
    if _is_last_block(counters, tl.program_id(1), PROGRAMS):
        to_bias, to_weight = _merge_sums(partials, channels, columns, in_range, BLOCK_CHANNELS, PROGRAMS, MERGE_ROWS)
        tl.store(grad_bias + columns, to_bias, mask=in_range)
        tl.store(grad_weight + columns, to_weight, mask=in_range)
        if alpha is not None:
            batch_share = _load_channels(alpha, columns * ALPHA_STRIDE, in_range) * share
            shift = _load_channels(mean_shift, columns, in_range)
            tilt = to_weight / rows * batch_share
            tl.store(mean_dy_xhat + columns, tilt, mask=in_range)
            tl.store(mean_dy + columns, to_bias / rows * batch_share + tilt * shift, mask=in_range)


@triton.jit
def _merge_sums(
    partials, channels, columns, in_range,
    BLOCK_CHANNELS: tl.constexpr, PROGRAMS: tl.constexpr, MERGE_ROWS: tl.constexpr,
):  # fmt: skip
    dy_sum = tl.zeros([MERGE_ROWS, BLOCK_CHANNELS], tl.float32)
    dy_xhat_sum = tl.zeros([MERGE_ROWS, BLOCK_CHANNELS], tl.float32)
    for start in range(0, PROGRAMS, MERGE_ROWS):
        programs = start + tl.arange(0, MERGE_ROWS)
        mask = (programs[:, None] < PROGRAMS) & in_range[None, :]
        slots = partials + programs[:, None] * 2 * channels + columns[None, :]
        dy_sum += tl.load(slots, mask=mask, other=0.0, volatile=True)
        dy_xhat_sum += tl.load(slots + channels, mask=mask, other=0.0, volatile=True)
    return tl.sum(dy_sum, 0), tl.sum(dy_xhat_sum, 0)


@triton.jit
def _batch_norm_backward_apply(
    grad_output, x, mean, inv_std, weight, bias, mean_dy_xhat, mean_dy, residual_grad, grad_input, rows, channels,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, RELU: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    row, channel = tl.program_id(0) * BLOCK_ROWS, tl.program_id(1) * BLOCK_CHANNELS
    columns = channel + tl.arange(0, BLOCK_CHANNELS)
    in_range = columns < channels
    center, scale, slope, offset = _load_layer(mean, inv_std, weight, bias, columns, in_range)
    level = _load_channels(mean_dy, columns, in_range)
    tilt = _load_channels(mean_dy_xhat, columns, in_range)
    if SUMS:
        level = level / rows
        tilt = tilt / rows
    dy, xhat, offsets, mask = _grad_tile(
        grad_output, x, center, scale, slope, offset, rows, channels, row, channel, BLOCK_ROWS, BLOCK_CHANNELS, RELU
    )
    dx = slope[None, :] * (dy - level[None, :] - xhat * tilt[None, :])
    if residual_grad is not None:
        dx = dx.to(grad_input.dtype.element_ty).to(tl.float32)
        dx += tl.load(residual_grad + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(grad_input + offsets, dx.to(grad_input.dtype.element_ty), mask=mask)


class LaunchConfig(NamedTuple):
    """How the work on images of one shape is divided into programs.

    Attributes:
        shape: Rows and channels.
        reduce: The grid of a reduction, and its options.
        partials: The shape of the buffer for the sums of the programs of a reduction.
        apply: The grid of an elementwise kernel, and its options.
    """

    shape: tuple[int, int]
    reduce: tuple[tuple[int, int], dict[str, int]]
    partials: tuple[int, int, int]
    apply: tuple[tuple[int, int], dict[str, int]]


class GradientSums(NamedTuple):
    """What a backward reduction finds, all of shape (C,).

    Attributes:
        grad_weight: The gradient of the weight.
        grad_bias: The gradient of the bias.
        mean_dy_xhat: What the gradient of x subtracts per unit of normalized x; None in a plain batch norm.
        mean_dy: What it subtracts besides; None in a plain batch norm.
    """

    grad_weight: Tensor
    grad_bias: Tensor
    mean_dy_xhat: Tensor | None = None
    mean_dy: Tensor | None = None


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
        partials=(programs, 2, channels),
        apply=((-(-rows // apply_rows), channel_blocks), {"BLOCK_ROWS": apply_rows, **block}),
    )


def _launch_config(x: Tensor) -> LaunchConfig:
    return _launch_config_for(x.numel() // x.shape[1], x.shape[1], x.element_size(), x.device)


def _empty(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def reduce(
    x: Tensor, addend: Tensor | None, eps: float, interpolation: Interpolation | None, counters: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the sum of x and addend, and the statistics that `driftproof.kernels.dispatch.forward` returns."""
    total = x if addend is None else torch.empty_like(x)
    config = _launch_config(x)
    grid, options = config.reduce
    partials = _empty(x, *config.partials)
    statistics = tuple(_empty(x, x.shape[1]) for _ in range(2 if interpolation is None else 5))
    outputs = (*statistics, None, None, None)[:5]
    *given, alpha, share = (None,) * 5 + (1.0,) if interpolation is None else interpolation
    _batch_norm_reduce[grid](
        x, addend, total, partials, counters, *outputs[:2], *given, alpha, *outputs[2:], *config.shape, eps, share,
        **options, ALPHA_STRIDE=_alpha_stride(alpha),
    )  # fmt: skip
    return total, statistics


def apply(x: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
    """Return `x` normalized, scaled and shifted, after a ReLU if asked for."""
    y = torch.empty_like(x)
    config = _launch_config(x)
    grid, options = config.apply
    _batch_norm_apply[grid](x, mean, inv_std, weight, bias, y, *config.shape, **options, RELU=relu)
    return y


def reduce_backward(
    grad_output: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor, bias: Tensor,
    alpha: Tensor | None, mean_shift: Tensor | None, share: float, counters: Tensor, *, relu: bool,
) -> GradientSums:  # fmt: skip
    """Return the gradients of weight and bias, and what `apply_backward` needs besides."""
    config = _launch_config(x)
    grid, options = config.reduce
    sums = GradientSums(*(_empty(x, x.shape[1]) for _ in range(2 if alpha is None else 4)))
    partials = _empty(x, *config.partials)
    _batch_norm_backward_reduce[grid](
        grad_output, x, mean, inv_std, weight, bias, partials, counters, sums.grad_weight, sums.grad_bias,
        alpha, mean_shift, sums.mean_dy, sums.mean_dy_xhat, *config.shape, share,
        **options, RELU=relu, ALPHA_STRIDE=_alpha_stride(alpha),
    )  # fmt: skip
    return sums


def apply_backward(
    grad_output: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor, bias: Tensor,
    sums: GradientSums, residual_grad: Tensor | None, *, relu: bool,
) -> Tensor:  # fmt: skip
    """Return the gradient of `x`, plus `residual_grad`."""
    grad_input = torch.empty_like(x)
    config = _launch_config(x)
    grid, options = config.apply
    plain = sums.mean_dy is None
    coefficients = sums[:2] if plain else sums[2:]
    _batch_norm_backward_apply[grid](
        grad_output, x, mean, inv_std, weight, bias, *coefficients, residual_grad, grad_input, *config.shape,
        **options, RELU=relu, SUMS=plain,
    )  # fmt: skip
    return grad_input


def _alpha_stride(alpha: Tensor | None) -> int:
    return 0 if alpha is None or alpha.numel() == 1 else 1
