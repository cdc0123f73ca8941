"""Random crops and flips of image batches."""

import math

import torch
from torch import Generator, Tensor

from driftproof import augment
from driftproof.training.augmix import bilinear

__all__ = ["crop_and_flip", "resized_crop_and_flip", "sample_crop_boxes"]


def crop_and_flip(images: Tensor, generator: Generator, *, padding: int = 4) -> Tensor:
    """Crop every image randomly after padding it with black, and flip it with probability 0.5.

    Examples:
        >>> images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
        >>> crop_and_flip(images, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 8, 8])
    """
    return augment.crop_and_flip(images, generator, padding=padding, per_image=True)


def resized_crop_and_flip(images: Tensor, generator: Generator) -> Tensor:
    """Resize a random crop of every image, 8 to 100 % of its area, and flip it with probability 0.5.

    Examples:
        >>> images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
        >>> resized_crop_and_flip(images, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 8, 8])
    """
    height, width = images.shape[2:]
    top, left, crop_height, crop_width = sample_crop_boxes(len(images), height, width, generator)
    rows = _sample_coordinates(top, crop_height, height)
    columns = _flip_randomly(_sample_coordinates(left, crop_width, width), generator)
    values = bilinear(images, rows.to(images.device).unsqueeze(2), columns.to(images.device).unsqueeze(1))
    return (values + 0.5).to(torch.uint8)


def sample_crop_boxes(
    count: int, height: int, width: int, generator: Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sample top, left, height and width of `count` crops, each (count, 1).

    The share of the area is drawn from U[0.08, 1], the log aspect ratio from U[log 3/4, log 4/3]. The first of ten
    draws that fits is used; if none fits, the crop is as large as the aspect ratio allows.
    """

    def uniform(columns: int) -> Tensor:
        return torch.rand(count, columns, generator=generator, device=generator.device, dtype=torch.float64)

    area = height * width * (0.08 + 0.92 * uniform(10))
    ratio = torch.exp(math.log(4 / 3) * (2.0 * uniform(10) - 1.0))
    heights, widths = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    first, any_fits = fits.int().argmax(dim=1, keepdim=True), fits.any(dim=1, keepdim=True)
    crop_height = torch.where(any_fits, heights.gather(1, first), min(height, max(1, round(width * 4 / 3))))
    crop_width = torch.where(any_fits, widths.gather(1, first), min(width, max(1, round(height * 4 / 3))))
    top, left = (uniform(1) * (height - crop_height + 1)).floor(), (uniform(1) * (width - crop_width + 1)).floor()
    return top, left, crop_height, crop_width


def _sample_coordinates(start: Tensor, length: Tensor, side: int) -> Tensor:
    """Return coordinates of `side` pixels, (N, side), that cover `length` pixels from `start`, clamped to them."""
    centers = torch.arange(side, device=start.device, dtype=torch.float64) + 0.5
    return start + torch.minimum((centers * length / side - 0.5).clamp(min=0.0), length - 1)


def _flip_randomly(columns: Tensor, generator: Generator) -> Tensor:
    flips = torch.rand(len(columns), 1, generator=generator, device=generator.device) < 0.5
    return torch.where(flips, columns.flip(1), columns)
