"""Blur: defocus, glass, motion, zoom and gaussian."""

import math

import torch
from torch import Tensor

from driftproof.corruptions.counter_rng import CounterRNG
from driftproof.corruptions.filters import correlate, gaussian_filter, gaussian_weights, motion_filter, sum_center_zooms

__all__ = ["defocus_blur", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"]


def defocus_blur(x: Tensor, rng: CounterRNG, constants: tuple[float, float]) -> Tensor:
    """Blur with the disk kernel of a defocused lens."""
    return correlate(x, _disk(*constants))


def gaussian_blur(x: Tensor, rng: CounterRNG, sigma: float) -> Tensor:
    """Apply a Gaussian blur."""
    return gaussian_filter(x, sigma)


def motion_blur(x: Tensor, rng: CounterRNG, constants: tuple[int, float]) -> Tensor:
    """Blur along a random direction within 45° of the horizontal."""
    radius, sigma = constants
    return motion_filter(x, radius, sigma, rng.uniform(low=-45.0, high=45.0))


def zoom_blur(x: Tensor, rng: CounterRNG, factors: tuple[float, ...]) -> Tensor:
    """Average the image with zoomed-in copies of itself."""
    return (x + sum_center_zooms(x, factors)) / (len(factors) + 1)


def glass_blur(x: Tensor, rng: CounterRNG, constants: tuple[float, int, int]) -> Tensor:
    """Replace pixels with nearby ones, as behind frosted glass.

    The reference means to swap two pixels but copies only one way: (h, w) receives the neighbour's value and the
    neighbour keeps its own. This function does the same.
    """
    sigma, reach, rounds = constants
    count, channels, height, width = x.shape
    planes = torch.floor(gaussian_filter(x, sigma).clamp(0, 1) * 255).reshape(count, channels, -1)
    for _ in range(rounds):
        across = rng.integers(height, width, low=-reach, high=reach)
        down = rng.integers(height, width, low=-reach, high=reach)
        origin = _glass_origins(across, down, reach)
        planes = planes.gather(2, origin.unsqueeze(1).expand(-1, channels, -1))
    return gaussian_filter(planes.view_as(x) / 255, sigma)


def _glass_origins(across: Tensor, down: Tensor, reach: int) -> Tensor:
    """Return the flat index that each pixel's value comes from, visiting pixels from last to first.

    A pixel reads its neighbour's current value: the original if the neighbour has not been visited yet, otherwise
    whatever the neighbour received. Pointer doubling follows these chains to their ends for all images at once.
    """
    count, height, width = across.shape
    rows = torch.arange(height, device=across.device).view(1, -1, 1)
    columns = torch.arange(width, device=across.device).view(1, 1, -1)
    own = rows * width + columns
    inner = _is_inner(height, rows, reach) & _is_inner(width, columns, reach)
    other_row, other_column = rows + down, columns + across
    other = other_row * width + other_column
    visited = _is_inner(height, other_row, reach) & _is_inner(width, other_column, reach) & (other > own)
    pixels = height * width
    # Nodes 0..pixels−1 are links still to follow; nodes pixels..2·pixels−1 are ends of chains.
    link = torch.where(inner, torch.where(visited, other, other + pixels), own + pixels).view(count, pixels)
    ends = torch.arange(pixels, 2 * pixels, device=across.device).expand(count, -1)
    link = torch.cat([link, ends], dim=1)
    for _ in range(math.ceil(math.log2(pixels))):
        link = link.gather(1, link)
    return link[:, :pixels] - pixels


def _is_inner(side: int, position: Tensor, reach: int) -> Tensor:
    return (position > reach) & (position <= side - reach)


def _disk(radius: float, alias: float) -> list[list[float]]:
    """Return a disk kernel that sums to one, anti-aliased with a small Gaussian."""
    reach, taps = (8, 3) if radius <= 8 else (int(radius), 5)
    grid = range(-reach, reach + 1)
    disk = torch.tensor([[float(x * x + y * y <= radius * radius) for x in grid] for y in grid], dtype=torch.float64)
    disk = disk / disk.sum()
    weights = gaussian_weights(alias, taps // 2)
    kernel = [[across * down for across in weights] for down in weights]
    smoothed: list[list[float]] = correlate(disk.view(1, 1, *disk.shape), kernel)[0, 0].tolist()
    return smoothed
