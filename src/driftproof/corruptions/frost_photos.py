"""Photos for the frost corruption; their license does not allow shipping them."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from driftproof.corruptions.counter_rng import CounterRNG, image_keys
from driftproof.corruptions.weather import plasma_fractal
from driftproof.errors import InputError
from driftproof.optional import require

__all__ = ["FrostPhotos", "find_frost_photos", "procedural_frost"]

_NAMES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")  # the reference never uses the sixth
_SCALES = {32: 0.2, 64: 0.3, 224: 1.0}


@dataclass(frozen=True)
class FrostPhotos:
    """Photos of frost and their origin, which results made with them record.

    Attributes:
        photos: Full-size photos, each (3, H, W) with values 0..255.
        origin: "folder", "imagecorruptions" or "procedural".
    """

    photos: tuple[Tensor, ...]
    origin: str

    def scaled(self, constants: int, device: torch.device) -> list[Tensor]:
        """Return the photos, scaled for images of 32, 64 or 224 pixels."""
        scale = _SCALES[constants]
        sizes = [(round(photo.shape[1] * scale), round(photo.shape[2] * scale)) for photo in self.photos]
        return [
            F.interpolate(photo.unsqueeze(0).to(device), size=size, mode="bilinear", align_corners=False)[0]
            for photo, size in zip(self.photos, sizes, strict=True)
        ]


def find_frost_photos(folder: Path | None = None) -> FrostPhotos:
    """Load the reference photos from a folder or the `imagecorruptions-imaug` package.

    Args:
        folder: Folder with frost1.png to frost5.jpg; None uses the installed package.
    """
    if folder is not None:
        return FrostPhotos(_read(folder), "folder")
    package = importlib.util.find_spec("imagecorruptions")
    if package is not None and package.origin is not None:
        return FrostPhotos(_read(Path(package.origin).parent / "frost"), "imagecorruptions")
    raise InputError(
        "Frost needs photos that are not part of driftproof. Pass a folder with frost1.png to frost5.jpg, install them "
        "with `pip install imagecorruptions-imaug`, or use `--procedural-frost`; results made with it say so."
    )


def procedural_frost() -> FrostPhotos:
    """Generate substitute photos from fractal noise; their origin is marked as procedural."""
    rng = CounterRNG(image_keys("procedural", "frost", 0, torch.arange(5)))
    ridges = 1 - 2 * (plasma_fractal(rng, 512, 1.6) - 0.5).abs()
    veil = plasma_fractal(rng, 512, 2.5)
    gray = 255 * (0.35 + 0.45 * ridges**4 + 0.2 * veil)
    tint = torch.tensor([0.92, 0.97, 1.0]).view(1, 3, 1, 1)
    return FrostPhotos(tuple((gray.unsqueeze(1) * tint).clamp(0, 255)), "procedural")


def _read(folder: Path) -> tuple[Tensor, ...]:
    pillow = require("PIL.Image", "Reading frost photos")
    missing = [name for name in _NAMES if not (folder / name).is_file()]
    if missing:
        raise InputError(f"Expected frost1.png to frost5.jpg in {folder}, but {', '.join(missing)} is not there.")
    photos = []
    for name in _NAMES:
        image = pillow.open(folder / name).convert("RGB")
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        photos.append(pixels.view(image.height, image.width, 3).permute(2, 0, 1).float())
    return tuple(photos)
