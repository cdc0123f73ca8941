"""`corrupt`: one function for every corruption."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from driftproof.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from driftproof.corruptions.constants import CONSTANTS, constants_for
from driftproof.corruptions.counter_rng import CounterRNG, image_keys
from driftproof.corruptions.digital import contrast, elastic_transform, jpeg_compression, pixelate, saturate
from driftproof.corruptions.frost_photos import FrostPhotos, find_frost_photos
from driftproof.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from driftproof.corruptions.spatter import spatter
from driftproof.corruptions.weather import brightness, fog, frost, snow
from driftproof.errors import ConfigurationError, InputError
from driftproof.validation import check_choice

__all__ = ["CORRUPTIONS", "HELD_OUT", "check_corruption", "corrupt"]

_FUNCTIONS: dict[str, Callable[[Tensor, CounterRNG, Any], Tensor]] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
    "speckle_noise": speckle_noise,
    "gaussian_blur": gaussian_blur,
    "spatter": spatter,
    "saturate": saturate,
}

HELD_OUT = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four extra corruptions, which the published data sets keep for validation."""

CORRUPTIONS = tuple(name for name in CONSTANTS[32] if name not in HELD_OUT)
"""The fifteen corruptions of the benchmark, in order."""

_ELASTIC_REFERENCE = {32: 32, 64: 64, 224: 244}  # 244 is what the reference uses for ImageNet
_PIXELS_PER_CHUNK = {"cpu": 2**17, "cuda": 2**23}


def corrupt(
    images: Tensor,
    name: str,
    severity: int = 5,
    *,
    dataset: str = "",
    indices: Tensor | None = None,
    constants: int | None = None,
    frost_photos: FrostPhotos | None = None,
) -> Tensor:
    """Corrupt a batch of images as the benchmark data sets do.

    Randomness depends only on the data set's name, the corruption, the severity and the image's index in the set, so
    an image gets the same result alone and in any batch.

    Args:
        images: 8-bit RGB images, (N, 3, H, W).
        name: One of `CORRUPTIONS` (the fifteen of the benchmark, in order) or `HELD_OUT`.
        severity: From 1 to 5.
        dataset: Name of the data set the images come from.
        indices: Index of each image in that data set, (N,); None means 0 to N − 1.
        constants: Use the constants for images of 32, 64 or 224 pixels; None chooses by the image size.
        frost_photos: Photos for frost; None uses those of the `imagecorruptions-imaug` package.

    Returns:
        8-bit images of the same shape. Values are truncated, not rounded, as in the published data sets.

    Examples:
        >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
        >>> whole = corrupt(images, "fog", severity=3)
        >>> torch.equal(whole[2:3], corrupt(images[2:3], "fog", severity=3, indices=torch.tensor([2])))
        True
    """
    _validate(images, name, severity, constants)
    constants = constants or constants_for(min(images.shape[2:]))
    indices = torch.arange(len(images)) if indices is None else indices
    if len(indices) != len(images):
        raise InputError(f"Expected one index per image, but got {len(indices)} for {len(images)} images.")
    keys = image_keys(dataset, name, severity, indices.to(images.device, torch.int64))
    strength = CONSTANTS[constants][name][severity - 1]
    apply = _bind_constants(name, strength, constants, frost_photos, images.device)
    chunk_size = max(1, _PIXELS_PER_CHUNK.get(images.device.type, 2**17) // (images.shape[2] * images.shape[3]))
    parts = [
        _to_uint8(apply(chunk_images.to(torch.float32) / 255, CounterRNG(chunk_keys)))
        for chunk_images, chunk_keys in zip(torch.split(images, chunk_size), torch.split(keys, chunk_size), strict=True)
    ]
    return torch.cat(parts) if parts else images


def _bind_constants(
    name: str,
    strength: Any,  # noqa: ANN401  # a number or a tuple of them
    constants: int,
    photos: FrostPhotos | None,
    device: torch.device,
) -> Callable[[Tensor, CounterRNG], Tensor]:
    if name == "frost":
        scaled = (photos or find_frost_photos()).scaled(constants, device)
        return lambda x, rng: frost(x, rng, strength, scaled)
    if name == "elastic_transform":
        return lambda x, rng: elastic_transform(x, rng, strength, _ELASTIC_REFERENCE[constants])
    return lambda x, rng: _FUNCTIONS[name](x, rng, strength)


def _to_uint8(x: Tensor) -> Tensor:
    # The offset keeps values that are integers up to floating-point error from being truncated to the next lower one.
    return torch.floor(x.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)


def check_corruption(name: str, severity: int) -> None:
    """Raise `ConfigurationError` unless the corruption and the severity exist."""
    check_choice("corruption", name, (*CORRUPTIONS, *HELD_OUT))
    if type(severity) is not int or not 1 <= severity <= 5:
        raise ConfigurationError(f"Expected `severity` to be an integer in 1..5, but got {severity!r}.")


def _validate(images: Tensor, name: str, severity: int, constants: int | None) -> None:
    check_corruption(name, severity)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise InputError(
            f"Expected 8-bit RGB images of shape (N, 3, H, W), but got {tuple(images.shape)} of {images.dtype}."
        )
    if constants not in (None, *CONSTANTS):
        raise ConfigurationError(f"Expected `constants` to be 32, 64 or 224, but got {constants!r}.")
