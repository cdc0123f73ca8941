"""Classes as colors."""

import colorsys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from driftproof.data.scenes import CAMVID, CITYSCAPES, UNKNOWN, VOID, SceneClass
from driftproof.data.scenes.classes import Color
from driftproof.errors import ConfigurationError

__all__ = ["REJECTED_COLOR", "UNKNOWN_COLOR", "VOID_COLORS", "colorize", "default_palette"]

REJECTED_COLOR: Color = (0, 0, 0)
UNKNOWN_COLOR: Color = (255, 255, 255)
VOID_COLORS: tuple[Color, Color] = ((150, 150, 150), (185, 185, 185))
"""Of the stripes that mark what is not labelled."""

_GOLDEN_RATIO = 0.618034
_STRIPE_WIDTH = 6


def default_palette(classes: int) -> tuple[SceneClass, ...]:
    """Names and colors for a model that is known by its number of classes alone.

    Examples:
        >>> default_palette(19)[0].name, default_palette(3)[2].name
        ('road', 'class 2')
    """
    if classes > UNKNOWN:
        raise ConfigurationError(
            f"Expected at most {UNKNOWN} classes, but got {classes}: {UNKNOWN} and {VOID} are unknown and void pixels."
        )
    known = {len(palette): palette for palette in (CITYSCAPES, CAMVID)}
    return known.get(classes) or tuple(SceneClass(f"class {place}", _class_color(place)) for place in range(classes))


def colorize(classes: Tensor, palette: Sequence[SceneClass]) -> npt.NDArray[np.uint8]:
    """A map of classes in their colors, (H, W, 3); unknown is white, void striped.

    Args:
        classes: A class for each pixel, `UNKNOWN` or `VOID`, (H, W).
        palette: The classes.
    """
    table = np.zeros((256, 3), dtype=np.uint8)
    table[: len(palette)] = [each.color for each in palette]
    table[UNKNOWN] = UNKNOWN_COLOR
    numbers = classes.numpy().astype(np.uint8)
    picture: npt.NDArray[np.uint8] = table[numbers]
    void = numbers == VOID
    picture[void] = _make_stripes(*numbers.shape)[void]
    return picture


def _make_stripes(height: int, width: int) -> npt.NDArray[np.uint8]:
    diagonal = np.add.outer(np.arange(height), np.arange(width)) // _STRIPE_WIDTH % 2
    stripes: npt.NDArray[np.uint8] = np.array(VOID_COLORS, dtype=np.uint8)[diagonal]
    return stripes


def _class_color(place: int) -> Color:
    red, green, blue = colorsys.hsv_to_rgb(place * _GOLDEN_RATIO % 1, 0.65, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)
