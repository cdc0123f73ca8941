"""Open-set data of the paper's streams: corrupted sets that are not published, generated and cached here."""

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
    """Return SVHN-C, the unknown data for CIFAR-10-C and CIFAR-100-C.

    The first call generates it; later calls read it from `SVHN-C`. The paper does not say which images it uses; these
    are the first 10,000 test images, in stored order.

    Args:
        root: Folder that holds SVHN and receives SVHN-C.
        corruption: Name of the corruption.
        severity: From 1 to 5.
        frost_photos: Photos for frost; None uses those of the `imagecorruptions-imaug` package.
        device: Device to generate it on.
        make: Whether to generate a missing set; if false, its images are computed on demand.
        progress: Called with the name of the set and the number of images done.
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
    """Return ImageNet-O-C, the unknown data for Tiny-ImageNet-C (64 pixels) and ImageNet-C (224).

    The first call generates it; later calls read it from `ImageNet-O-C-{side}`. As in those sets, images are scaled,
    then corrupted, then saved with JPEG quality 85.

    Args:
        root: Folder that holds ImageNet-O and receives `ImageNet-O-C-{side}`.
        corruption: Name of the corruption.
        severity: From 1 to 5.
        side: 64 or 224.
        frost_photos: Photos for frost; None uses those of the `imagecorruptions-imaug` package.
        device: Device to generate it on.
        make: Whether to generate a missing set; if false, its images are computed on demand.
        progress: Called with the name of the set and the number of images done.
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
