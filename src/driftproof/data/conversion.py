"""Image sets from arrays and tensors of any usual kind."""

from typing import Any

import numpy as np
import torch

from driftproof.data.images import ArraySet, ImageSet
from driftproof.errors import InputError

__all__ = ["to_image_set"]


def to_image_set(content: Any, name: str) -> ImageSet:  # noqa: ANN401  # whatever the user has
    """Return images, or a pair of images and labels, as an image set.

    Args:
        content: An `ImageSet`; or an array or tensor of shape (N, H, W, 3) or (N, 3, H, W), uint8 or floats in 0..1,
            alone or with one integer per image. Floats are rounded to eight bits.
        name: Name of the set.

    Examples:
        >>> to_image_set((np.full((5, 8, 8, 3), 0.5), [0, 1, 0, 1, 0]), "gray").batch([0]).unique()
        tensor([128], dtype=torch.uint8)
    """
    if isinstance(content, ImageSet):
        return content
    images, labels = content if isinstance(content, tuple) and len(content) == 2 else (content, None)
    pixels = images if isinstance(images, torch.Tensor) else torch.as_tensor(np.asarray(images))
    if pixels.is_floating_point():
        if not bool(((pixels >= 0) & (pixels <= 1)).all()):  # also refuses NaN
            raise InputError(f"Expected floating-point images of {name} in 0..1, but got others. Return uint8 instead.")
        pixels = (255 * pixels).round().to(torch.uint8)
    return ArraySet(pixels, labels, name=name)
