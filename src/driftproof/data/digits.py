"""The handwritten digits that come along with scikit-learn: some known, some not."""

import numpy as np
import torch
import torch.nn.functional as F

from driftproof.data.images import ArraySet, ImageSet
from driftproof.optional import require

__all__ = ["digits", "digits_unknown"]

_KNOWN = 6
_NAMES = tuple(str(digit) for digit in range(10))


def digits(*, train: bool = False) -> ImageSet:
    """The digits 0 to 5 as 16×16 color images, in a fixed random order; one half is for training.

    Args:
        train: Whether to take the half that a model is trained on, instead of the other.

    Examples:
        >>> digits()
        ArraySet('digits', 542 images, 6 classes)
    """
    images, labels = _load_digits()
    places = torch.nonzero(labels < _KNOWN).flatten()
    half = len(places) // 2
    chosen = places[:half] if train else places[half:]
    name = "digits/train" if train else "digits"
    return ArraySet(images[chosen], labels[chosen], classes=_NAMES[:_KNOWN], name=name)


def digits_unknown() -> ImageSet:
    """The digits 6 to 9, which a model trained on the others has never seen."""
    images, labels = _load_digits()
    return ArraySet(images[labels >= _KNOWN], labels[labels >= _KNOWN], classes=_NAMES, name="digits-unknown")


def _load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    bunch = require("sklearn.datasets", "The demo", "'driftproof[demo]'").load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    ink = torch.from_numpy(bunch.images[order]).unsqueeze(1) / 16
    scaled = F.interpolate(ink, size=16, mode="bilinear", align_corners=False)
    pixels = torch.floor(255 * scaled + 0.5).to(torch.uint8)
    return pixels.expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(bunch.target[order])
