"""Color maps of classes."""

import colorsys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from driftproof.data.scenes import CAMVID, CITYSCAPES, UNKNOWN, VOID, SceneClass
from driftproof.errors import ConfigurationError

__all__ = ["colorize", "default_palette"]

_GOLDEN_RATIO = 0.618034
_STRIPE_WIDTH = 6


def default_palette(classes: int) -> tuple[SceneClass, ...]:
    """Return names and colors of the classes of a model, from their number alone.

    Examples:
        >>> default_palette(19)[0].name, default_palette(3)[2].name
        ('road', 'class 2')
    """
    if classes > UNKNOWN:
        raise ConfigurationError(
            f"Expected at most {UNKNOWN} classes, but got {classes}: {UNKNOWN} and {VOID} mark unknown and void pixels."
        )
    known = {len(palette): palette for palette in (CITYSCAPES, CAMVID)}
    colors = (colorsys.hsv_to_rgb(index * _GOLDEN_RATIO % 1, 0.65, 0.85) for index in range(classes))
    return known.get(classes) or tuple(
        SceneClass(f"class {index}", (round(255 * red), round(255 * green), round(255 * blue)))
        for index, (red, green, blue) in enumerate(colors)
    )


def colorize(classes: Tensor, palette: Sequence[SceneClass]) -> npt.NDArray[np.uint8]:
    """Color a map of classes, giving (H, W, 3); unknown is white, void is striped gray.

    Args:
        classes: The class of each pixel, `UNKNOWN` or `VOID`, (H, W).
        palette: The classes.
    """
    table = np.full((256, 3), 255, dtype=np.uint8)
    table[: len(palette)] = [each.color for each in palette]
    indices = classes.numpy().astype(np.uint8)
    image: npt.NDArray[np.uint8] = table[indices]
    stripes = np.add.outer(*map(np.arange, indices.shape)) // _STRIPE_WIDTH % 2
    return np.where((indices == VOID)[..., None], (150 + 35 * stripes)[..., None], image).astype(np.uint8)
