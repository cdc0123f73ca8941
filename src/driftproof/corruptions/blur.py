"""Blur: defocus, glass, motion, zoom and gaussian."""

import math

import torch
from torch import Tensor

from driftproof.corruptions.counter_rng import CounterRNG
from driftproof.corruptions.filters import correlate, gaussian_filter, gaussian_weights, motion_filter, sum_center_zooms

__all__ = ["defocus_blur", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"]


def defocus_blur(x: Tensor, rng: CounterRNG, constants: tuple[float, float]) -> Tensor:
    """The disk of a lens out of focus."""
    return correlate(x, _disk(*constants))


def gaussian_blur(x: Tensor, rng: CounterRNG, sigma: float) -> Tensor:
    """Plain Gaussian blur."""
    return gaussian_filter(x, sigma)


def motion_blur(x: Tensor, rng: CounterRNG, constants: tuple[int, float]) -> Tensor:
    """A streak in a random direction within 45° of the horizontal."""
    radius, sigma = constants
    return motion_filter(x, radius, sigma, rng.uniform(low=-45.0, high=45.0))


def zoom_blur(x: Tensor, rng: CounterRNG, factors: tuple[float, ...]) -> Tensor:
    """The mean over zooming in while the shutter is open."""
    return (x + sum_center_zooms(x, factors)) / (len(factors) + 1)


def glass_blur(x: Tensor, rng: CounterRNG, constants: tuple[float, int, int]) -> Tensor:
    """Seen through frosted glass: pixels take the place of near-by ones.

    As in the reference, whose exchange of two pixels copies one way only: (h, w) receives the other, which keeps its
    own.
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
    """Where each pixel's value comes from when rows and columns are visited from the last to the first.

    A visited pixel reads its neighbour as it is by then: as it was if the neighbour's turn has not come, else what the
    neighbour itself received. Following those links to their ends takes a few rounds of doubling for all images.
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
    # Nodes 0..pixels−1 are links still to follow, pixels..2·pixels−1 their ends.
    link = torch.where(inner, torch.where(visited, other, other + pixels), own + pixels).view(count, pixels)
    ends = torch.arange(pixels, 2 * pixels, device=across.device).expand(count, -1)
    link = torch.cat([link, ends], dim=1)
    for _ in range(math.ceil(math.log2(pixels))):
        link = link.gather(1, link)
    return link[:, :pixels] - pixels


def _is_inner(side: int, place: Tensor, reach: int) -> Tensor:
    return (place > reach) & (place <= side - reach)


def _disk(radius: float, alias: float) -> list[list[float]]:
    """A disk on the integer grid, summing to one, smoothed by a small Gaussian against aliasing."""
    reach, taps = (8, 3) if radius <= 8 else (int(radius), 5)
    grid = range(-reach, reach + 1)
    disk = torch.tensor([[float(x * x + y * y <= radius * radius) for x in grid] for y in grid], dtype=torch.float64)
    disk = disk / disk.sum()
    weights = gaussian_weights(alias, taps // 2)
    kernel = [[across * down for across in weights] for down in weights]
    smoothed: list[list[float]] = correlate(disk.view(1, 1, *disk.shape), kernel)[0, 0].tolist()
    return smoothed
