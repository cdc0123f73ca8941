"""Textures and noise: images that show no object, as unknown images that need no download."""

import math

import torch
from torch import Tensor

from driftproof.corruptions.counter_rng import CounterRNG, image_keys
from driftproof.corruptions.weather import plasma_fractal
from driftproof.data.images import ArraySet, ImageSet

__all__ = ["textures"]

_KINDS = ("clouds", "stone", "waves", "noise")


def textures(count: int = 10_000, side: int = 32) -> ImageSet:
    """Generate textures in two random colors each: clouds, stone, waves and white noise, in turns.

    Args:
        count: Number of images.
        side: Height and width, a power of two.

    Examples:
        >>> textures(8)
        ArraySet('textures', 8 images, 4 classes)
    """
    rng = CounterRNG(image_keys("textures", "none", 0, torch.arange(count)))
    patterns = (
        plasma_fractal(rng, side, 3.0),
        plasma_fractal(rng, side, 1.7),
        _waves(rng, side),
        rng.uniform(side, side),
    )
    kinds = torch.arange(count) % len(_KINDS)
    pattern = torch.stack(patterns)[kinds, torch.arange(count)].unsqueeze(1)
    first, second = rng.uniform(3, 1, 1), rng.uniform(3, 1, 1)
    pixels = (255 * torch.lerp(first, second, pattern)).round().to(torch.uint8)
    return ArraySet(pixels, kinds, classes=_KINDS, name="textures")


def _waves(rng: CounterRNG, side: int) -> Tensor:
    """Plane waves of two to eight periods, in any direction, (N, side, side) in [0, 1]."""
    angle, periods, phase = (rng.uniform(1, 1, low=low, high=high) for low, high in ((0, math.pi), (2, 8), (0, 1)))
    along = torch.arange(side) / side
    place = along * torch.cos(angle) + along.unsqueeze(1) * torch.sin(angle)
    return 0.5 + 0.5 * torch.sin(2 * math.pi * (periods * place + phase))
