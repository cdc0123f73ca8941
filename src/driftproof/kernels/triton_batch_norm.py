"""Triton kernels for batch norm with channels last: two passes over memory forward, two backward.

A batch of images is a matrix here: one row per pixel, one column per channel. Each program of a reduction sums some
rows of a block of channels; the program that finishes last merges the sums and does all arithmetic per channel. Sums
are added in a fixed order, so results repeat to the last bit. Fusing an addition or a ReLU changes no bit: every value
is rounded where it would be stored, and added in the same order. NaN propagates through the ReLU, as in PyTorch; plain
`tl.maximum` would turn it into 0 and hide a bad batch.

A pointer that is None is a compile-time constant: plain and interpolated batch norm, of all or of selected samples, are
versions of one kernel. `positions` is the number of rows of a sample.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from driftproof.kernels.interpolation import Interpolation
from driftproof.kernels.launch_config import launch_config
from driftproof.kernels.triton_selection import count_rows, describe, load_chosen

__all__ = ["GradientSums", "apply", "apply_backward", "reduce", "reduce_backward"]


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
    selected, samples, positions, rows, channels, eps, share,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, PROGRAMS: tl.constexpr, MERGE_ROWS: tl.constexpr,
    ALPHA_STRIDE: tl.constexpr, MOMENTS: tl.constexpr,
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
    counted = rows
    if selected is not None:
        counted, takes_all = count_rows(selected, samples, positions, rows)
    for row in range(first, rows, PROGRAMS * BLOCK_ROWS):
        values, offsets, mask = _load_tile(x, rows, channels, row, channel, BLOCK_ROWS, BLOCK_CHANNELS)
        if addend is not None:
            values += tl.load(addend + offsets, mask=mask, other=0.0).to(tl.float32)
            stored = values.to(total.dtype.element_ty)
            tl.store(total + offsets, stored, mask=mask)
            values = stored.to(tl.float32)
        if selected is None:
            count += tl.minimum(rows - row, BLOCK_ROWS).to(tl.float32)
        else:
            chosen = load_chosen(selected, rows, row, positions, takes_all, BLOCK_ROWS)
            mask = mask & chosen[:, None]
            count += tl.sum(chosen.to(tl.float32), 0)
        delta = tl.where(mask, values - pivot[None, :], 0.0)
        delta_sum += delta
        square_sum += delta * delta
    summed = tl.sum(delta_sum, 0)
    delta_mean = summed / tl.maximum(count, 1.0)
    m2 = tl.sum(square_sum, 0) - summed * delta_mean
    slot = partials + program * MOMENTS * channels + columns
    tl.store(slot, pivot + delta_mean, mask=in_range)
    tl.store(slot + channels, m2, mask=in_range)
    if MOMENTS == 3:
        tl.store(slot + 2 * channels, count + tl.zeros([BLOCK_CHANNELS], tl.float32), mask=in_range)
    if _is_last_block(counters, tl.program_id(1), PROGRAMS):
        batch_mean, batch_var = _merge_moments(
            partials, rows, counted, channels, columns, in_range,
            BLOCK_ROWS, BLOCK_CHANNELS, PROGRAMS, MERGE_ROWS, MOMENTS,
        )  # fmt: skip
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
    partials, rows, counted, channels, columns, in_range,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, PROGRAMS: tl.constexpr, MERGE_ROWS: tl.constexpr,
    MOMENTS: tl.constexpr,
):  # fmt: skip
    # Of all samples, each program had as many rows as there were whole rounds, and perhaps a tile or a part of it more.
    rounds = rows // (PROGRAMS * BLOCK_ROWS)
    rest = rows - rounds * PROGRAMS * BLOCK_ROWS
    pivot = tl.load(partials + columns, mask=in_range, other=0.0, volatile=True)
    delta_sum = tl.zeros([MERGE_ROWS, BLOCK_CHANNELS], tl.float32)
    m2 = tl.zeros([MERGE_ROWS, BLOCK_CHANNELS], tl.float32)
    for start in range(0, PROGRAMS, MERGE_ROWS):
        programs = start + tl.arange(0, MERGE_ROWS)
        tail = tl.minimum(tl.maximum(rest - programs * BLOCK_ROWS, 0), BLOCK_ROWS)
        mask = (programs[:, None] < PROGRAMS) & in_range[None, :]
        slots = partials + programs[:, None] * MOMENTS * channels + columns[None, :]
        delta = tl.load(slots, mask=mask, other=0.0, volatile=True) - pivot[None, :]
        if MOMENTS == 3:
            counts = tl.load(slots + 2 * channels, mask=mask, other=0.0, volatile=True)
        else:
            counts = (rounds * BLOCK_ROWS + tail).to(tl.float32)[:, None]
        weighted = tl.where(mask, delta * counts, 0.0)
        delta_sum += weighted
        m2 += tl.load(slots + channels, mask=mask, other=0.0, volatile=True) + weighted * delta
    delta_mean = tl.sum(delta_sum, 0) / counted
    var = tl.maximum(tl.sum(m2, 0) / counted - delta_mean * delta_mean, 0.0, propagate_nan=tl.PropagateNan.ALL)
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
    alpha, mean_shift, mean_dy, mean_dy_xhat, selected, samples, positions, rows, channels, share,
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
            counted = rows
            if selected is not None:
                counted, _ = count_rows(selected, samples, positions, rows)
            batch_share = _load_channels(alpha, columns * ALPHA_STRIDE, in_range) * share
            shift = _load_channels(mean_shift, columns, in_range)
            tilt = to_weight / counted * batch_share
            tl.store(mean_dy_xhat + columns, tilt, mask=in_range)
            tl.store(mean_dy + columns, to_bias / counted * batch_share + tilt * shift, mask=in_range)


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
    grad_output, x, mean, inv_std, weight, bias, mean_dy_xhat, mean_dy, residual_grad, grad_input,
    selected, samples, positions, rows, channels,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, RELU: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    row, channel = tl.program_id(0) * BLOCK_ROWS, tl.program_id(1) * BLOCK_CHANNELS
    columns = channel + tl.arange(0, BLOCK_CHANNELS)
    in_range = columns < channels
    center, scale, slope, offset = _load_layer(mean, inv_std, weight, bias, columns, in_range)
    level = _load_channels(mean_dy, columns, in_range)
    tilt = _load_channels(mean_dy_xhat, columns, in_range)
    counted = rows
    if selected is not None:
        counted, takes_all = count_rows(selected, samples, positions, rows)
    if SUMS:
        level = level / counted
        tilt = tilt / counted
    dy, xhat, offsets, mask = _grad_tile(
        grad_output, x, center, scale, slope, offset, rows, channels, row, channel, BLOCK_ROWS, BLOCK_CHANNELS, RELU
    )
    if selected is None:
        dx = slope[None, :] * (dy - level[None, :] - xhat * tilt[None, :])
    else:  # the statistics are functions of the selected samples alone
        chosen = load_chosen(selected, rows, row, positions, takes_all, BLOCK_ROWS)
        dx = slope[None, :] * (dy - tl.where(chosen[:, None], level[None, :] + xhat * tilt[None, :], 0.0))
    if residual_grad is not None:
        dx = dx.to(grad_input.dtype.element_ty).to(tl.float32)
        dx += tl.load(residual_grad + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(grad_input + offsets, dx.to(grad_input.dtype.element_ty), mask=mask)


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


def _empty(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def reduce(
    x: Tensor, addend: Tensor | None, eps: float, interpolation: Interpolation | None, counters: Tensor,
    selected: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return the sum of x and addend, and the statistics that `driftproof.kernels.dispatch.forward` returns."""
    total = x if addend is None else torch.empty_like(x)
    config = launch_config(x)
    grid, options = config.reduce
    moments = 2 if selected is None else 3
    partials = _empty(x, grid[0], moments, x.shape[1])
    statistics = tuple(_empty(x, x.shape[1]) for _ in range(2 if interpolation is None else 5))
    outputs = (*statistics, None, None, None)[:5]
    *given, alpha, share = (None,) * 5 + (1.0,) if interpolation is None else interpolation
    _batch_norm_reduce[grid](
        x, addend, total, partials, counters, *outputs[:2], *given, alpha, *outputs[2:], *describe(x, selected),
        *config.shape, eps, share, **options, ALPHA_STRIDE=_alpha_stride(alpha), MOMENTS=moments,
    )  # fmt: skip
    return total, statistics


def apply(x: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
    """Return `x` normalized, scaled and shifted, after a ReLU if asked for."""
    y = torch.empty_like(x)
    config = launch_config(x)
    grid, options = config.apply
    _batch_norm_apply[grid](x, mean, inv_std, weight, bias, y, *config.shape, **options, RELU=relu)
    return y


def reduce_backward(
    grad_output: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor, bias: Tensor,
    alpha: Tensor | None, mean_shift: Tensor | None, share: float, counters: Tensor, selected: Tensor | None = None,
    *, relu: bool,
) -> GradientSums:  # fmt: skip
    """Return the gradients of weight and bias, and what `apply_backward` needs besides."""
    config = launch_config(x)
    grid, options = config.reduce
    sums = GradientSums(*(_empty(x, x.shape[1]) for _ in range(2 if alpha is None else 4)))
    partials = _empty(x, grid[0], 2, x.shape[1])
    _batch_norm_backward_reduce[grid](
        grad_output, x, mean, inv_std, weight, bias, partials, counters, sums.grad_weight, sums.grad_bias,
        alpha, mean_shift, sums.mean_dy, sums.mean_dy_xhat, *describe(x, selected), *config.shape, share,
        **options, RELU=relu, ALPHA_STRIDE=_alpha_stride(alpha),
    )  # fmt: skip
    return sums


def apply_backward(
    grad_output: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor, bias: Tensor,
    sums: GradientSums, residual_grad: Tensor | None, selected: Tensor | None = None, *, relu: bool,
) -> Tensor:  # fmt: skip
    """Return the gradient of `x`, plus `residual_grad`."""
    grad_input = torch.empty_like(x)
    config = launch_config(x)
    grid, options = config.apply
    plain = sums.mean_dy is None
    coefficients = sums[:2] if plain else sums[2:]
    _batch_norm_backward_apply[grid](
        grad_output, x, mean, inv_std, weight, bias, *coefficients, residual_grad, grad_input, *describe(x, selected),
        *config.shape, **options, RELU=relu, SUMS=plain,
    )  # fmt: skip
    return grad_input


def _alpha_stride(alpha: Tensor | None) -> int:
    return 0 if alpha is None or alpha.numel() == 1 else 1
