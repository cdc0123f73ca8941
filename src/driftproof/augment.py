"""Random image augmentations as batched tensor operations.

Images are (N, C, H, W) with values in [0, 1]; keep the input normalization inside the model. An `Augment` is any
function of images and a random generator, so you can pass your own.
"""

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from driftproof.errors import InputError, ModelError

__all__ = [
    "Augment",
    "check_keeps_pixels",
    "check_unit_range",
    "cotta_view",
    "crop_and_flip",
    "geometric_jitter",
    "photometric",
    "shuffle_patches",
    "strong_view",
]

Augment = Callable[[Tensor, Generator], Tensor]

_LUMA = (0.299, 0.587, 0.114)
_TOLERANCE = 0.5
_HINT = "pass `augment=` (cotta: `views=RandomViews(augment=...)`) with a function that fits your inputs"


def photometric(images: Tensor, generator: Generator) -> Tensor:
    """Apply color jitter and blur, drawn per image; geometry is unchanged.

    Brightness, contrast and saturation are scaled by U[0.2, 1.8], the hue is shifted by U[−0.3, 0.3] of the circle, and
    a Gaussian blur with σ ~ U[0.15, 1.3] follows. Open choice: always applied, in this order.
    """
    _check_images(images)
    count = images.shape[0]

    def draw(low: float, high: float) -> Tensor:
        return _uniform(generator, count, low, high).to(images.dtype)

    view = _brightness(images, draw(0.2, 1.8))
    view = _contrast(view, draw(0.2, 1.8))
    view = _saturation(view, draw(0.2, 1.8))
    view = _hue(view, draw(-0.3, 0.3))
    return _blur(view, draw(0.15, 1.3), radius=4)


def cotta_view(images: Tensor, generator: Generator) -> Tensor:
    """Apply CoTTA's augmentation: color jitter in random order, small affine, blur, flip and noise.

    All but the noise is drawn once per batch. Open choice: the translation is at most 1/16 of the padded image and in
    whole pixels.
    """
    _check_images(images)
    return _jitter(images, generator, torch.randperm(5, generator=generator, device=generator.device).tolist())


def strong_view(images: Tensor, generator: Generator) -> Tensor:
    """Apply `cotta_view` with the color jitter in a fixed order, so that a step can be captured."""
    _check_images(images)
    return _jitter(images, generator, order=range(5))


def geometric_jitter(images: Tensor, generator: Generator) -> Tensor:
    """Apply ROID's augmentation: `strong_view` without blur and noise, padded by reflection."""
    _check_images(images)
    return _jitter(images, generator, order=range(5), padding="reflect", softens=False)


def _jitter(
    images: Tensor, generator: Generator, order: Iterable[int], *, padding: str = "replicate", softens: bool = True
) -> Tensor:
    """CoTTA's augmentation with the color jitter in this order; `softens` is blur and noise."""
    height, width = images.shape[-2:]

    def draw(low: float, high: float) -> Tensor:
        return _uniform(generator, 1, low, high).to(images.dtype)

    jitters: list[Callable[[Tensor], Tensor]] = [
        lambda x: _brightness(x, draw(0.6, 1.4)),
        lambda x: _contrast(x, draw(0.7, 1.3)),
        lambda x: _saturation(x, draw(0.5, 1.5)),
        lambda x: _hue(x, draw(-0.06, 0.06)),
        lambda x: x.clamp(1e-8, 1.0) ** draw(0.7, 1.3),
    ]
    view = images.clamp(0.0, 1.0)
    for choice in order:
        view = jitters[choice](view)
    top, left = height // 2, width // 2
    view = F.pad(view, (left, left, top, top), mode=padding)
    view = _affine(view, angle=draw(-15, 15), shift_x=draw(-1, 1) / 16, shift_y=draw(-1, 1) / 16, scale=draw(0.9, 1.1))
    if softens:
        view = _blur(view, draw(0.001, 0.5), radius=2)
    view = view[..., top : top + height, left : left + width]
    view = torch.where(draw(0, 1) < 0.5, view.flip(-1), view)
    if softens:
        view = view + 0.005 * torch.randn(view.shape, generator=generator, device=view.device, dtype=view.dtype)
    return view.clamp(0.0, 1.0)


def crop_and_flip(
    images: Tensor, generator: Generator, *, padding: int | None = None, per_image: bool = False
) -> Tensor:
    """Pad with black, crop at a random place, and flip with probability 0.5; values may have any range.

    Args:
        images: The images to augment.
        generator: Source of random numbers.
        padding: Pixels to add on every side; None is an eighth of the shorter side.
        per_image: Whether each image gets a draw of its own; else one is for the whole batch.

    Examples:
        >>> crop_and_flip(torch.rand(4, 3, 8, 8), torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 8, 8])
    """
    _check_images(images)
    count, channels, height, width = images.shape
    draws, device = count if per_image else 1, generator.device
    padding = min(height, width) // 8 if padding is None else padding
    offsets = torch.randint(2 * padding + 1, (2, draws, 1), generator=generator, device=device)
    flips = torch.rand(draws, 1, generator=generator, device=device) < 0.5
    rows, columns = offsets[0] + torch.arange(height, device=device), offsets[1] + torch.arange(width, device=device)
    columns = torch.where(flips, columns.flip(1), columns)
    rows, columns = rows.to(images.device).view(draws, 1, -1, 1), columns.to(images.device).view(draws, 1, 1, -1)
    image = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return F.pad(images, (padding,) * 4)[image, channel, rows, columns]


def shuffle_patches(images: Tensor, generator: Generator, patches: int = 4) -> Tensor:
    """Cut every image into a grid of patches and put them together in random order, an own one for each image.

    Sides that are no multiple of the number of patches are resized to one, and back.

    Args:
        images: The images.
        generator: Draws the orders.
        patches: Patches along each side.

    Examples:
        >>> image = torch.arange(4.0).view(1, 1, 2, 2)
        >>> shuffle_patches(image, Generator().manual_seed(0), patches=2).flatten().sort().values
        tensor([0., 1., 2., 3.])
    """
    _check_images(images)
    count, channels, *sides = images.shape
    height, width = (max(1, side // patches) for side in sides)
    fits = [height * patches, width * patches] == sides
    view = images if fits else _resize(images, [height * patches, width * patches])
    tiles = view.view(count, channels, patches, height, patches, width).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    order = torch.rand(count, patches**2, generator=generator, device=generator.device).argsort(dim=1)
    tiles = tiles.gather(1, order.view(count, -1, 1, 1, 1).expand_as(tiles))
    tiles = tiles.view(count, patches, patches, channels, height, width).permute(0, 3, 1, 4, 2, 5)
    view = tiles.reshape(count, channels, height * patches, width * patches)
    return view if fits else _resize(view, sides)


_MOVE_PIXELS = (cotta_view, strong_view, crop_and_flip, geometric_jitter, shuffle_patches)


def check_keeps_pixels(augment: Augment, logits: Tensor) -> None:
    """Raise `ModelError` if an augmentation of this module moves pixels and the logits are of label maps."""
    plain = getattr(augment, "func", augment)  # of a `functools.partial`
    if logits.ndim > 2 and plain in _MOVE_PIXELS:
        raise ModelError(
            f"Expected an augmentation that moves no pixels, since the logits have shape {tuple(logits.shape)}, but "
            f"got {plain.__name__}. Pass `augment=driftproof.augment.photometric`."
        )


def check_unit_range(images: Tensor, augment: Augment) -> None:
    """Raise `InputError` if an augmentation of this module would clip the images to [0, 1].

    This finds normalized images, and floats in 0..255. Values up to 0.5 outside are accepted, because resampling
    overshoots. Non-finite images pass: the adapter skips them. The check synchronizes with the device.

    Args:
        images: The images to augment.
        augment: The augmentation; one from outside this module is not checked.

    Examples:
        >>> check_unit_range(torch.rand(1, 3, 2, 2) * 255, photometric)
        Traceback (most recent call last):
        driftproof.errors.InputError: Expected images with values in [0, 1] to augment...
    """
    if augment not in (photometric, cotta_view, strong_view, geometric_jitter):
        return
    low, high = torch.stack(images.aminmax()).tolist()
    if _TOLERANCE < max(-low, high - 1) < math.inf:
        raise InputError(
            f"Expected images with values in [0, 1] to augment, but got values from {low:.3g} to {high:.3g}. "
            f"Keep the input normalization inside the model, or {_HINT}."
        )


def _check_images(images: Tensor) -> None:
    if images.ndim != 4:
        raise InputError(f"Expected images of shape (N, C, H, W) to augment, but got {tuple(images.shape)}: {_HINT}.")


def _uniform(generator: Generator, count: int, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(count, 1, 1, 1, generator=generator, device=generator.device)


def _blend(images: Tensor, other: Tensor, amount: Tensor) -> Tensor:
    return (other + (images - other) * amount).clamp(0.0, 1.0)


def _to_gray(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    red, green, blue = (weight * plane for weight, plane in zip(_LUMA, torch.split(images, 1, dim=1), strict=True))
    return red + green + blue


def _resize(images: Tensor, sides: list[int]) -> Tensor:
    return F.interpolate(images, size=sides, mode="bilinear", align_corners=False)


def _brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * factor).clamp(0.0, 1.0)


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _to_gray(images).mean(dim=(1, 2, 3), keepdim=True), factor)


def _saturation(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _to_gray(images), factor) if images.shape[1] == 3 else images


def _hue(images: Tensor, shift: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images
    value, brightest = images.max(dim=1, keepdim=True)
    chroma = value - images.amin(dim=1, keepdim=True)
    # The hue in sixths of the circle, from the brightest channel and the difference of the other two.
    following = images.gather(1, (brightest + 1) % 3)
    preceding = images.gather(1, (brightest + 2) % 3)
    sixth = 2.0 * brightest.to(images.dtype) + (following - preceding) / chroma.clamp(min=1e-8) + 6.0 * shift
    offsets = torch.arange(5, 0, -2, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
    k = (offsets + sixth) % 6.0
    return value - chroma * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0)


def _blur(images: Tensor, sigma: Tensor, radius: int) -> Tensor:
    count, channels, height, width = images.shape
    taps = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    kernel = torch.exp(-0.5 * (taps / sigma.view(-1, 1)) ** 2)
    kernel = (kernel / kernel.sum(dim=1, keepdim=True)).expand(count, -1).repeat_interleave(channels, dim=0)
    groups = count * channels
    planes = images.reshape(1, groups, height, width)
    padded = F.pad(planes, (radius, radius, radius, radius), mode="replicate")
    rows = F.conv2d(padded, kernel.view(groups, 1, 1, -1), groups=groups)
    return F.conv2d(rows, kernel.view(groups, 1, -1, 1), groups=groups).view(images.shape)


def _affine(images: Tensor, *, angle: Tensor, shift_x: Tensor, shift_y: Tensor, scale: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    radians = angle.flatten() * (math.pi / 180.0)
    cos, sin = torch.cos(radians) / scale.flatten(), torch.sin(radians) / scale.flatten()
    # Shifts are whole pixels; grid coordinates run from -1 to 1, so one pixel is 2 / side.
    move_x = torch.round(shift_x.flatten() * width) * (2.0 / width)
    move_y = torch.round(shift_y.flatten() * height) * (2.0 / height)
    aspect = height / width
    matrix = torch.stack(
        [
            torch.cat([cos, sin * aspect, -(cos * move_x + sin * aspect * move_y)]),
            torch.cat([-sin / aspect, cos, sin / aspect * move_x - cos * move_y]),
        ]
    )
    grid = F.affine_grid(matrix.expand(images.shape[0], 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
