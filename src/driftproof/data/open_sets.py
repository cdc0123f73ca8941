"""The unknown of the paper's open-set streams: sets nobody publishes in corrupted form, made here and kept."""

from pathlib import Path

import torch

from driftproof.corruptions import FrostPhotos
from driftproof.data.corrupted import PUBLISHED_QUALITY, Corrupted, Progress, cache_to_disk
from driftproof.data.imagenet import imagenet_o
from driftproof.data.images import ImageSet, ResizeShorterSide, Size
from driftproof.data.svhn import svhn
from driftproof.errors import ConfigurationError

__all__ = ["imagenet_o_c", "svhn_c"]

_SIZES: dict[int, Size] = {64: (64, 64), 224: ResizeShorterSide(256, crop=224)}


def svhn_c(
    root: Path,
    corruption: str,
    severity: int = 5,
    *,
    frost_photos: FrostPhotos | None = None,
    device: torch.device | str = "cpu",
    make: bool = True,
    progress: Progress | None = None,
) -> ImageSet:
    """SVHN-C, which goes with CIFAR-10-C and CIFAR-100-C: made at the first call, read from `SVHN-C` afterwards.

    Open choice taken: the first 10,000 test images, in stored order.

    Args:
        root: The folder that holds SVHN, and gets SVHN-C.
        corruption: Its name.
        severity: From 1 to 5.
        frost_photos: For frost; None looks for the `imagecorruptions-imaug` package.
        device: Where to make it.
        make: Otherwise, unless it is there, images are computed whenever they are asked for.
        progress: Called with the set's name and the number of images done.
    """
    images = Corrupted(
        svhn(root, limit=10_000), corruption, severity, constants=32, frost_photos=frost_photos, device=device
    )
    return cache_to_disk(images, Path(root) / "SVHN-C", make=make, progress=progress)


def imagenet_o_c(
    root: Path,
    corruption: str,
    severity: int = 5,
    *,
    side: int = 64,
    frost_photos: FrostPhotos | None = None,
    device: torch.device | str = "cpu",
    make: bool = True,
    progress: Progress | None = None,
) -> ImageSet:
    """ImageNet-O-C, which goes with Tiny-ImageNet-C (64 pixels) and ImageNet-C (224): made once and kept.

    Scaled first, as the sets it goes with were, then corrupted, then saved with JPEG quality 85 as they were.

    Args:
        root: The folder that holds ImageNet-O, and gets `ImageNet-O-C-{side}`.
        corruption: Its name.
        severity: From 1 to 5.
        side: 64 or 224.
        frost_photos: For frost; None looks for the `imagecorruptions-imaug` package.
        device: Where to make it.
        make: Otherwise, unless it is there, images are computed whenever they are asked for.
        progress: Called with the set's name and the number of images done.
    """
    if side not in _SIZES:
        raise ConfigurationError(f"Expected `side` to be 64 or 224, but got {side!r}.")
    images = Corrupted(
        imagenet_o(root, size=_SIZES[side]),
        corruption,
        severity,
        constants=side,
        resave=PUBLISHED_QUALITY,
        frost_photos=frost_photos,
        device=device,
    )
    return cache_to_disk(images, Path(root) / f"ImageNet-O-C-{side}", make=make, progress=progress)
