"""Color maps of classes."""

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
"""Colors of the stripes that mark pixels without a label."""

_GOLDEN_RATIO = 0.618034
_STRIPE_WIDTH = 6


def default_palette(classes: int) -> tuple[SceneClass, ...]:
    """Names and colors of the classes of a model, from their number alone.

    Examples:
        >>> default_palette(19)[0].name, default_palette(3)[2].name
        ('road', 'class 2')
    """
    if classes > UNKNOWN:
        raise ConfigurationError(
            f"Expected at most {UNKNOWN} classes, but got {classes}: {UNKNOWN} and {VOID} mark unknown and void pixels."
        )
    known = {len(palette): palette for palette in (CITYSCAPES, CAMVID)}
    return known.get(classes) or tuple(SceneClass(f"class {index}", _class_color(index)) for index in range(classes))


def colorize(classes: Tensor, palette: Sequence[SceneClass]) -> npt.NDArray[np.uint8]:
    """Color a map of classes, giving (H, W, 3); unknown is white, void is striped.

    Args:
        classes: The class of each pixel, `UNKNOWN` or `VOID`, (H, W).
        palette: The classes.
    """
    table = np.zeros((256, 3), dtype=np.uint8)
    table[: len(palette)] = [each.color for each in palette]
    table[UNKNOWN] = UNKNOWN_COLOR
    indices = classes.numpy().astype(np.uint8)
    image: npt.NDArray[np.uint8] = table[indices]
    void = indices == VOID
    image[void] = _make_stripes(*indices.shape)[void]
    return image


def _make_stripes(height: int, width: int) -> npt.NDArray[np.uint8]:
    diagonal = np.add.outer(np.arange(height), np.arange(width)) // _STRIPE_WIDTH % 2
    stripes: npt.NDArray[np.uint8] = np.array(VOID_COLORS, dtype=np.uint8)[diagonal]
    return stripes


def _class_color(index: int) -> Color:
    red, green, blue = colorsys.hsv_to_rgb(index * _GOLDEN_RATIO % 1, 0.65, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)
