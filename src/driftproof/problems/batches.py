"""Recognize what is given in place of a batch, and read the batches that `check` looks at."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from driftproof.errors import InputError
from driftproof.problems.problem import Problem

__all__ = ["MAX_IMAGES", "check_batch", "describe_batch_mistake", "is_pair", "read_batches"]

MAX_IMAGES = 1024
"""The most images that `check` reads."""


def check_batch(name: str, images: object) -> None:
    """Refuse anything but a floating-point tensor of at least one image."""
    if not isinstance(images, Tensor) or not images.is_floating_point() or images.ndim < 2 or len(images) == 0:
        found, advice = describe_batch_mistake(images)
        raise InputError(f"Expected {name} to be a floating-point tensor, but got {found}. {advice}")


def describe_batch_mistake(images: object) -> tuple[str, str]:
    """Return what was given instead of a floating-point tensor of images, and what to do.

    Examples:
        >>> describe_batch_mistake({"image": 1, "label": 2})
        ('a dict with the keys image, label', 'Pass the images alone, such as `batch["image"]`.')
    """
    kind = type(images).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    if isinstance(images, Tensor):
        if images.ndim < 2 or len(images) == 0:
            return f"a tensor of shape {tuple(images.shape)}", "Pass a batch of at least one image: (N, C, H, W)."
        return f"a tensor of {images.dtype}", "Convert integer images with `images.float() / 255`."
    if _is_numpy(images):
        return "a numpy array", "Convert it with `torch.from_numpy(images).float()`, channels first: (N, C, H, W)."
    if isinstance(images, Mapping):
        first = next(iter(images), "image")
        keys = ", ".join(map(str, images))
        return f"{article} {kind} with the keys {keys}", f'Pass the images alone, such as `batch["{first}"]`.'
    if isinstance(images, tuple | list):
        if is_pair(images):
            return f"a {kind} of 2, as of images and labels", "Pass the images alone: `adapter(images)`."
        return f"a {kind} of {len(images)}", "Stack images to one tensor with `torch.stack`."
    return f"{article} {kind}", "Pass a batch of images as a tensor, (N, C, H, W)."


def is_pair(batch: object) -> TypeGuard[Sequence[Tensor]]:
    """Return whether this is a tuple or list of images and their labels."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[0], Tensor):
        return False
    return not isinstance(batch[1], Tensor) or batch[1].ndim < batch[0].ndim


def read_batches(images: Tensor | Iterable[object], device: torch.device) -> tuple[list[Tensor], list[Problem]]:
    """Return the first batches in floating point on a device, and what was wrong with their form.

    Labels of pairs are dropped and bytes are divided by 255, so that all else can be checked too.

    Args:
        images: A batch, or batches.
        device: Where the model is.
    """
    problems: set[Problem] = set()
    batches: list[Tensor] = []
    for given in _iterate(images):
        batch: object = given
        if is_pair(given):
            batch = given[0]
            problems.add(Problem("note", "Batches are pairs of images and labels", "Pass the images to an adapter."))
        tensor = batch if isinstance(batch, Tensor) and batch.ndim >= 2 and len(batch) > 0 else None
        if tensor is None or not torch.is_floating_point(tensor):
            message, fix = describe_batch_mistake(batch)
            problems.add(Problem("error", f"A batch is {message}", fix))
        if tensor is None:
            break
        batches.append((tensor if torch.is_floating_point(tensor) else tensor.float() / 255).detach().to(device))
        if sum(map(len, batches)) >= MAX_IMAGES:
            break
    if not batches and not problems:
        problems.add(Problem("error", "There are no images", "Pass a batch, or batches."))
    return batches, list(problems)


def _iterate(images: object) -> Iterator[object]:
    if isinstance(images, Iterable) and not (
        isinstance(images, Tensor | Mapping | str) or is_pair(images) or _is_numpy(images)
    ):
        yield from images
    else:
        yield images


def _is_numpy(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "numpy"
