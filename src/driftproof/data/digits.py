"""The handwritten digits of scikit-learn, split into known and unknown classes."""

import numpy as np
import torch
import torch.nn.functional as F

from driftproof.data.images import ArraySet, ImageSet
from driftproof.optional import require

__all__ = ["digits", "digits_unknown"]

_KNOWN = 6
_NAMES = tuple(str(digit) for digit in range(10))


def digits(*, train: bool = False) -> ImageSet:
    """Load the digits 0 to 5 as 16×16 RGB images in a fixed random order.

    Args:
        train: Whether to return the training half instead of the test half.

    Examples:
        >>> digits()
        ArraySet('digits', 542 images, 6 classes)
    """
    images, labels = _load_digits()
    indices = torch.nonzero(labels < _KNOWN).flatten()
    half = len(indices) // 2
    chosen = indices[:half] if train else indices[half:]
    name = "digits/train" if train else "digits"
    return ArraySet(images[chosen], labels[chosen], classes=_NAMES[:_KNOWN], name=name)


def digits_unknown() -> ImageSet:
    """Load the digits 6 to 9, which a model trained on `digits` has never seen."""
    images, labels = _load_digits()
    return ArraySet(images[labels >= _KNOWN], labels[labels >= _KNOWN], classes=_NAMES, name="digits-unknown")


def _load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    bunch = require("sklearn.datasets", "The demo", "'driftproof[demo]'").load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    ink = torch.from_numpy(bunch.images[order]).unsqueeze(1) / 16
    scaled = F.interpolate(ink, size=16, mode="bilinear", align_corners=False)
    pixels = torch.floor(255 * scaled + 0.5).to(torch.uint8)
    return pixels.expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(bunch.target[order])
