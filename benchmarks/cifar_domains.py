"""CIFAR-10 and its corruptions on a device, with what the source network says of every image."""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from driftproof.corruptions import FrostPhotos, find_frost_photos, procedural_frost
from driftproof.data import Corrupted, ImageSet, cache_to_disk, cifar10
from driftproof.errors import InputError

__all__ = ["CLEAN", "Domain", "find_frost", "load_domains", "parse_part", "predict"]

CLEAN = "clean"
SEVERITY = 5
FOLDER = "CIFAR-10-C-made"
"""Where generated corruptions are kept, in the folder of the data; `driftproof bench` uses the same."""


@dataclass(frozen=True)
class Domain:
    """The images of one corruption.

    Attributes:
        name: The corruption, or "clean".
        pixels: uint8 images on the device, (N, 3, H, W).
        labels: Their classes, (N,).
    """

    name: str
    pixels: Tensor
    labels: Tensor

    def images(self, indices: Tensor) -> Tensor:
        """Return images in 0..1."""
        return self.pixels[indices].float() / 255


def find_frost(folder: Path | None) -> FrostPhotos:
    """Return the photos in the folder or of the installed package, else procedural ones."""
    try:
        return find_frost_photos(folder)
    except InputError:
        if folder is not None:
            raise
        return procedural_frost()


def load_domains(
    data: Path,
    names: Sequence[str],
    *,
    device: str,
    count: int | None = None,
    frost: FrostPhotos | None = None,
    severity: int = SEVERITY,
) -> list[Domain]:
    """Read or generate the test images of each domain.

    Args:
        data: Folder of CIFAR-10; generated corruptions are kept in it unless `count` is given.
        names: Corruptions, or "clean".
        device: Where the corruptions are generated and the images are put.
        count: Only the first so many images; None is all.
        frost: Photos for frost.
        severity: Of the corruptions, 1 to 5.
    """
    clean, domains = cifar10(data), []
    for name in names:
        images: ImageSet = clean
        if name != CLEAN:
            photos = frost if name == "frost" else None
            images = cache_to_disk(
                Corrupted(clean, name, severity, frost_photos=photos, device=device), data / FOLDER, make=count is None
            )
        pixels = images.batch(torch.arange(len(clean) if count is None else min(count, len(clean))))
        domains.append(Domain(name, pixels.to(device), clean.labels[: len(pixels)].to(device)))
    return domains


@torch.no_grad()
def predict(model: nn.Module, domain: Domain, *, batch_size: int = 500) -> Tensor:
    """Return the logits of a network in evaluation mode for all images of a domain."""
    parts = torch.split(torch.arange(len(domain.labels), device=domain.labels.device), batch_size)
    return torch.cat([model(domain.images(part)) for part in parts])


def parse_part(text: str) -> tuple[int, int]:
    """Read I/N.

    Examples:
        >>> parse_part("2/5")
        (2, 5)
    """
    index, count = map(int, text.split("/"))
    if not 0 <= index < count:
        raise ArgumentTypeError(f"Expected I/N with I in 0..N−1, but got {text}.")
    return index, count
