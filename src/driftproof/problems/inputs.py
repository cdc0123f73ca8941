"""Problems of images: how they are prepared, judged by range and by the first batch norm."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from driftproof.problems.first_layer import FirstLayer
from driftproof.problems.problem import Problem
from driftproof.problems.repairs import add_color, is_grey, order_repairs, scale_repairs

__all__ = ["check_inputs"]

_MOST = 256  # images that are compared with the running statistics
_FEWEST = 16  # fewer images have statistics of their own

# A repair is reported if it leaves at most this share of the distance to the running statistics, and ends near them.
# Fog, contrast and frost leave 0.4 or more of it with any repair of scale, and 0.85 or more with reversed channels.
_SCALE_SHARE, _SCALE_DISTANCE = 0.25, 0.3
_ORDER_SHARE, _ORDER_DISTANCE = 0.65, 0.15
_GREY_SHARE = 0.4
_COLORS = (0.2, 0.4)  # of photos, relative to their contrast
_FAR = 2.0  # beyond any corruption


def check_inputs(model: nn.Module, images: Tensor) -> Iterator[Problem]:
    """Find the mistakes in how images were prepared.

    Args:
        model: A copy of the model in evaluation mode, which is run in part.
        images: Images in floating point, (N, C, …).
    """
    finite = images.flatten(1).isfinite().all(dim=1)
    if not finite.all():
        count = len(images) - int(finite.sum())
        yield Problem("warning", f"{count} of {len(images)} images contain NaN or Inf", "Remove or repair them.")
        images = images[finite]
    if len(images) == 0:
        return
    images = images[:_MOST]
    yield from _check_constant(images)
    try:
        layer = FirstLayer(model, images)
    except Exception:  # the whole forward pass fails too, and is reported with its reason
        return
    if layer.name is None or len(images) < _FEWEST:
        yield from _check_range(images)
    else:
        yield from _compare(layer, images)


def _check_constant(images: Tensor) -> Iterator[Problem]:
    values = images.transpose(0, 1).flatten(1)
    constant = torch.nonzero((values == values[:, :1]).all(dim=1)).flatten().tolist() if values.shape[1] > 1 else []
    if constant:
        what = "All images are" if len(constant) == len(values) else f"Channel {', '.join(map(str, constant))} is"
        yield Problem("warning", f"{what} constant", "Check how images are read.")


def _check_range(images: Tensor) -> Iterator[Problem]:
    low, high = float(images.min()), float(images.max())
    if low >= 0 and 20 < high <= 255:
        yield Problem("warning", "The images seem to be in 0..255", "Divide them by 255, unless training did not.")
    elif max(-low, high) > 10:
        message = f"The images reach from {low:.3g} to {high:.3g}, which is unusual for a network's input"
        yield Problem("warning", message, "Prepare them as in training.")
    elif low >= 0 and 0 < high < 1.05 / 255:
        yield Problem("warning", "The images seem to be divided by 255 twice", "Divide once.")


def _compare(layer: FirstLayer, images: Tensor) -> Iterator[Problem]:
    """Find the one mistake whose repair brings the images close to the running statistics."""
    where = (layer.name,) if layer.name else ()
    distance = layer.distance(images)
    repairs = [(layer.distance(repair.apply(images)), repair) for repair in scale_repairs(images)]
    left, best = min(repairs, key=lambda pair: pair[0], default=(distance, None))
    if best is not None and left < min(_SCALE_SHARE * distance, _SCALE_DISTANCE):
        yield Problem("warning", best.message, best.fix, where)
    elif distance > _FAR:
        message = "The images are far from training's, beyond what a change of domain explains"
        yield Problem("warning", message, "Prepare them as in training: scale, normalization and channel order.", where)
    elif is_grey(images):
        left = min(layer.distance(add_color(images, strength)) for strength in _COLORS)
        if left < _GREY_SHARE * distance:
            message = "The images are grey, but the model was trained on color"
            yield Problem("warning", message, "Read them in color, or expect less accuracy.", where)
    elif images.ndim == 4 and images.shape[1] == 3:
        left = min(layer.distance(reverse(images)) for reverse in order_repairs(images))
        if left < min(_ORDER_SHARE * distance, _ORDER_DISTANCE):
            message = "The color channels are in reverse order: BGR instead of RGB, or the other way round"
            yield Problem("warning", message, "Reverse them with `images.flip(1)`, before they are normalized.", where)
