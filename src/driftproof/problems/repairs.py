"""Mistakes in how images are prepared, each with the change that repairs it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Repair", "add_color", "is_grey", "order_repairs", "scale_repairs"]

_TOLERANCE = 0.05  # resizing overshoots a little


@dataclass(frozen=True)
class _Normalization:
    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, images: Tensor) -> Tensor:
        return (images - self._channels(self.mean, images)) / self._channels(self.std, images)

    def after_scaling(self, factor: float, images: Tensor) -> Tensor:
        return self.apply(images * factor)

    def undo(self, images: Tensor) -> Tensor:
        return images * self._channels(self.std, images) + self._channels(self.mean, images)

    def divide_pixels(self, images: Tensor) -> Tensor:
        return self.apply(self.undo(images) / 255)

    def reverse_channels(self, images: Tensor) -> Tensor:
        return self.apply(self.undo(images).flip(1))

    def fits(self, images: Tensor) -> bool:
        return len(self.mean) == 1 or len(self.mean) == images.shape[1]

    def _channels(self, values: tuple[float, ...], images: Tensor) -> Tensor:
        return images.new_tensor(values).view(1, -1, *[1] * (images.ndim - 2))

    def __str__(self) -> str:
        return f"mean {', '.join(map(str, self.mean))} and std {', '.join(map(str, self.std))} ({self.name})"


_NORMALIZATIONS = (
    _Normalization("ImageNet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    _Normalization("CIFAR-10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    _Normalization("−1..1", (0.5,), (0.5,)),
)


@dataclass(frozen=True)
class Repair:
    """A mistake and the change of the images that repairs it.

    Attributes:
        message: The mistake.
        fix: What to do.
        apply: Repairs a batch.
    """

    message: str
    fix: str
    apply: Callable[[Tensor], Tensor]


def scale_repairs(images: Tensor) -> Iterator[Repair]:
    """Iterate over the mistakes of scale and normalization that the range of the images allows.

    Args:
        images: Finite images, (N, C, …).
    """
    fitting = [one for one in _NORMALIZATIONS if one.fits(images)]
    if _lies_in(images, 1 / 255):
        yield Repair("The images are divided by 255 twice", "Divide once.", lambda x: x * 255)
        for one in fitting:
            fix = f"Divide once, then normalize with the values of training, such as {one}."
            yield Repair("The images are divided by 255 twice", fix, partial(one.after_scaling, 255))
    elif _lies_in(images, 1):
        for one in fitting:
            fix = f"Normalize them with the values of training, such as {one}, best inside the model."
            yield Repair("The images are not normalized, but the model was trained on normalized ones", fix, one.apply)
        for one in fitting:
            message = "The images are normalized inside the model, but it was trained without that or does it twice"
            yield Repair(message, f"Remove the normalization with {one}.", one.undo)
        yield Repair("The images are in 0..1, but the model was trained on 0..255", "Scale by 255.", lambda x: x * 255)
    elif _are_bytes(images):
        message = "The images are in 0..255, but the model was trained on"
        yield Repair(f"{message} 0..1", "Divide them by 255.", lambda x: x / 255)
        for one in fitting:
            fix = f"Divide them by 255, then normalize with the values of training, such as {one}."
            yield Repair(f"{message} normalized ones", fix, partial(one.after_scaling, 1 / 255))
    else:
        yield from _normalized_repairs(images, fitting)


def _normalized_repairs(images: Tensor, fitting: Sequence[_Normalization]) -> Iterator[Repair]:
    once = [one for one in fitting if _lies_in(one.undo(images), 1)]
    for one in once:
        message = "The images are normalized, but the model was trained on 0..1 or normalizes them itself"
        yield Repair(message, f"Do not normalize them: it was done with {one}.", one.undo)
    for one in () if once else fitting:
        pixels = one.undo(images)
        if _are_bytes(pixels):
            fix = "Divide by 255 before you normalize them."
            yield Repair("The images are normalized without division by 255", fix, one.divide_pixels)
        elif _lies_in(one.undo(pixels), 1):
            yield Repair(f"The images are normalized twice, with {one}", "Normalize them once.", one.undo)


def order_repairs(images: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
    """Iterate over the ways to reverse the channels, before or after the images were normalized."""
    yield partial(torch.flip, dims=(1,))
    for one in _NORMALIZATIONS:
        if one.fits(images) and _lies_in(one.undo(images), 1):
            yield one.reverse_channels


def is_grey(images: Tensor) -> bool:
    """Return whether the three channels of all images hold the same picture, up to brightness and contrast."""
    if images.ndim != 4 or images.shape[1] != 3:
        return False
    channels = images.double().transpose(0, 1).flatten(1)
    return bool((torch.corrcoef(channels) > 0.9999).all())


def add_color(images: Tensor, strength: float) -> Tensor:
    """Give grey images smooth random colors; their strength is relative to the contrast."""
    generator = torch.Generator().manual_seed(0)
    local, overall = (torch.randn(len(images), 3, side, side, generator=generator) for side in (4, 1))
    tints = local + overall
    tints = (tints - tints.mean(dim=1, keepdim=True)).to(images)
    contrast = images.std(dim=(0, 2, 3), keepdim=True)
    return images + strength * contrast * F.interpolate(tints, size=images.shape[2:], mode="bilinear")


def _are_bytes(images: Tensor) -> bool:
    return _lies_in(images, 255) and bool(images.max() > 20)


def _lies_in(images: Tensor, top: float) -> bool:
    return bool(images.min() >= -_TOLERANCE * top and images.max() <= (1 + _TOLERANCE) * top)
