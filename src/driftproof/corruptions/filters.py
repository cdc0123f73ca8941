"""Filters and resampling, written as sums of shifted images.

Convolution libraries change the order of summation with the batch size. Here the order is fixed, so an image gets the
same bits alone and in any batch.
"""

import math
from collections import Counter
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "box_resize",
    "correlate",
    "gaussian_filter",
    "gaussian_weights",
    "motion_filter",
    "reflect",
    "sum_center_zooms",
    "to_grayscale",
]


def gaussian_weights(sigma: float, radius: int) -> list[float]:
    """Return Gaussian taps from −radius to radius that sum to one."""
    taps = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(-radius, radius + 1)]
    return [tap / sum(taps) for tap in taps]


def gaussian_filter(x: Tensor, sigma: float) -> Tensor:
    """Blur the last two dimensions with a Gaussian truncated at 4σ, replicating the border."""
    radius = int(4.0 * sigma + 0.5)
    if radius == 0:
        return x
    weights = gaussian_weights(sigma, radius)
    padded = F.pad(x, (0, 0, radius, radius), mode="replicate")
    rows = _weighted_sum(weights, [padded[..., k : k + x.shape[-2], :] for k in range(2 * radius + 1)])
    padded = F.pad(rows, (radius, radius, 0, 0), mode="replicate")
    return _weighted_sum(weights, [padded[..., k : k + x.shape[-1]] for k in range(2 * radius + 1)])


def correlate(x: Tensor, kernel: list[list[float]]) -> Tensor:
    """Correlate with a square kernel of odd side, reflecting the border without the edge."""
    height, width = x.shape[-2:]
    radius = len(kernel) // 2
    # Indices are reflected as often as needed: an image may be smaller than the kernel.
    rows, columns = (_reflect_indices(side, radius, x.device) for side in (height, width))
    padded = x.index_select(-2, rows).index_select(-1, columns)
    taps = [(row, column) for row in range(len(kernel)) for column in range(len(kernel)) if kernel[row][column] != 0.0]
    views = [padded[..., row : row + height, column : column + width] for row, column in taps]
    return _weighted_sum([kernel[row][column] for row, column in taps], views)


def motion_filter(x: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """Blur to one side along a direction per image, replicating the border.

    Tap i of 0..2·radius reads at (⌈i cos φ − ½⌉, ⌈i sin φ − ½⌉) in x and y with weight ∝ exp(−i²/2σ²).
    """
    count, channels, height, width = x.shape
    taps = [math.exp(-(i**2) / (2.0 * sigma**2)) for i in range(2 * radius + 1)]
    angle = degrees.to(torch.float64).view(-1, 1, 1) * (math.pi / 180.0)
    rows = torch.arange(height, device=x.device).view(1, -1, 1)
    columns = torch.arange(width, device=x.device).view(1, 1, -1)
    planes = x.reshape(count, channels, height * width)
    total = torch.zeros_like(planes)
    for i, tap in enumerate(taps):
        across = torch.ceil(i * torch.cos(angle) - 0.5).to(torch.int64)
        down = torch.ceil(i * torch.sin(angle) - 0.5).to(torch.int64)
        position = (rows + down).clamp(0, height - 1) * width + (columns + across).clamp(0, width - 1)
        total += planes.gather(2, position.view(count, 1, -1).expand(-1, channels, -1)) * (tap / sum(taps))
    return total.view_as(x)


def sum_center_zooms(x: Tensor, factors: Sequence[float]) -> Tensor:
    """Return the sum of center zooms, one per factor, interpolated linearly and cropped to the old size.

    Sizes are whole pixels, so close factors often give the same zoom. Each distinct zoom is computed once.
    """
    height, width = x.shape[-2:]
    zooms = Counter((_zoom_sizes(height, factor), _zoom_sizes(width, factor)) for factor in factors)
    # Images come last, so that selecting rows or columns copies long contiguous runs.
    pixels = x.reshape(-1, height, width).permute(1, 2, 0).contiguous()
    total = torch.zeros_like(pixels)
    for (down, across), times in zooms.items():
        total = torch.add(total, _zoom_axis(_zoom_axis(pixels, 0, down), 1, across), alpha=times)
    return total.permute(2, 0, 1).reshape(x.shape)


def _zoom_sizes(side: int, factor: float) -> tuple[int, int]:
    part = math.ceil(side / factor)
    return part, round(part * factor)


def _zoom_axis(pixels: Tensor, axis: int, zoom: tuple[int, int]) -> Tensor:
    side = pixels.shape[axis]
    part, enlarged = zoom
    if part == enlarged == side:
        return pixels
    start, trim = (side - part) // 2, (enlarged - side) // 2
    position = torch.arange(trim, trim + side, device=pixels.device, dtype=torch.float64)
    position = position * ((part - 1) / max(enlarged - 1, 1))
    low = position.floor().clamp(max=max(part - 2, 0)).to(torch.int64)
    share = (position - low).to(pixels.dtype).view(*([-1, 1, 1] if axis == 0 else [1, -1, 1]))
    before = pixels.index_select(axis, start + low)
    return torch.lerp(before, pixels.index_select(axis, start + (low + 1).clamp(max=part - 1)), share)


def box_resize(x: Tensor, height: int, width: int) -> Tensor:
    """Resize 8-bit values with a box filter, columns first, rounding after each pass as Pillow does."""
    for axis, size in ((-1, width), (-2, height)):
        scale = x.shape[axis] / size
        support = 0.5 * max(scale, 1.0)
        spans = [_box_span((i + 0.5) * scale, support, x.shape[axis]) for i in range(size)]
        longest = max(end - start for start, end in spans)
        total: Tensor | None = None
        for k in range(longest):
            position = [min(start + k, x.shape[axis] - 1) for start, _ in spans]
            weight = [1.0 / (end - start) if start + k < end else 0.0 for start, end in spans]
            share = torch.tensor(weight, device=x.device, dtype=x.dtype)
            share = share.unsqueeze(-1) if axis == -2 else share
            term = x.index_select(axis, torch.tensor(position, device=x.device)) * share
            total = term if total is None else total + term
        assert total is not None  # a span is never empty
        x = torch.floor(total + 0.5)
    return x


def reflect(position: Tensor, side: int, *, repeat_edge: bool) -> Tensor:
    """Reflect coordinates into 0..side − 1, with or without repeating the edge pixel."""
    if repeat_edge:
        position = torch.remainder(position + 0.5, 2.0 * side)
        return torch.where(position > side, 2.0 * side - position, position) - 0.5
    period = 2.0 * max(side - 1, 1)
    position = torch.remainder(position, period)
    return torch.where(position > side - 1, period - position, position)


def _reflect_indices(side: int, radius: int, device: torch.device) -> Tensor:
    positions = torch.arange(-radius, side + radius, device=device)
    return reflect(positions, side, repeat_edge=False).long().clamp(max=side - 1)


def to_grayscale(x: Tensor) -> Tensor:
    """Convert RGB images to luma, one channel."""
    return 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def _weighted_sum(weights: list[float], views: list[Tensor]) -> Tensor:
    total = views[0] * weights[0]
    for weight, view in zip(weights[1:], views[1:], strict=True):
        total = torch.add(total, view, alpha=weight)
    return total


def _box_span(center: float, support: float, side: int) -> tuple[int, int]:
    start, end = max(int(center - support + 0.5), 0), min(int(center + support + 0.5), side)
    # The window includes its right edge only: a pixel center on the left edge is outside.
    inside = [k for k in range(start, end) if -support < k + 0.5 - center <= support] or [min(int(center), side - 1)]
    return inside[0], inside[-1] + 1
