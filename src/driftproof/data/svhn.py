"""Street View House Numbers (SVHN)."""

from pathlib import Path

import numpy as np

from driftproof.data.folder import locate
from driftproof.data.images import ArraySet, ImageSet
from driftproof.data.mat_file import read_mat
from driftproof.errors import ConfigurationError, InputError

__all__ = ["svhn"]


def svhn(root: Path, *, limit: int | None = None) -> ImageSet:
    """Read the SVHN test images (cropped digits, 32×32) from `test_32x32.mat`.

    Labels are the digits 0 to 9.

    Args:
        root: Folder that holds the file, directly or in `svhn`.
        limit: Read only the first images, this many; 10,000 for SVHN-C.
    """
    if limit is not None and limit < 1:
        raise ConfigurationError(f"Expected `limit` to be at least 1, but got {limit}.")
    path = locate(root, "svhn/test_32x32.mat", "test_32x32.mat", dataset="svhn")
    content = read_mat(path, ("X", "y"))
    images, labels = content.get("X"), content.get("y")
    fits = images is not None and labels is not None and images.ndim == 4 and labels.size == images.shape[3]
    if images is None or labels is None or not fits or labels.dtype.kind not in "iu":
        raise InputError(f"Expected {path} to hold X of shape (32, 32, 3, N) and y of N labels. Download it again.")
    kept = np.ascontiguousarray(images[..., :limit].transpose(3, 0, 1, 2))
    # The file stores digit 0 as 10.
    digits = labels.reshape(-1)[:limit].astype(np.int64) % 10
    return ArraySet(kept, digits, classes=[str(digit) for digit in range(10)], name="svhn")
