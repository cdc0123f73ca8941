"""Keeps single images out of a batch that would spoil it for the others."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from driftproof.components import Component
from driftproof.distributed import Distributed
from driftproof.kernels import runs_triton
from driftproof.network import Network

__all__ = ["Judgement", "Quarantine", "expand_mask", "mask_like", "replace_bad"]

_FAR = math.log(10.0)
_MOMENTUM, _STEP = 0.1, math.log(600.0)
_CROWD = 8
_MOST = 4096
"""The most images that the kernels take."""


class Judgement(NamedTuple):
    """What a look at the images of a batch says.

    Attributes:
        good: Which images are good, (N,).
        bad: Which are not.
        any_good: Whether any is, as a 0-d tensor.
        largest: The logarithm of the largest absolute value of each, (N,); None if `log_scale` is known.
        log_scale: The scale of the stream after these images, by themselves; None if it is not known yet.
    """

    good: Tensor
    bad: Tensor
    any_good: Tensor
    largest: Tensor | None
    log_scale: Tensor | None


class Quarantine(Component):
    """Replaces images that are not finite, or far outside what the stream has shown, by another of the batch.

    An image is far outside if its largest absolute value is more than ten times the usual one: the stream's moving
    geometric mean, to which no image counts for more than 600 times what is usual. In a batch of eight or more, the
    majority is right: if most images are outside, the stream has changed. A replaced image gets no answer and is not
    learned from; statistics and memory see the good image twice. A batch without a good image is not finite afterwards,
    so the step is undone.

    Attributes:
        log_scale: The logarithm of the usual largest absolute value of an image; None before the first batch.
    """

    log_scale: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_scale", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget the stream."""
        self.log_scale = None

    def judge(self, images: Tensor, *, shared: bool = False) -> Judgement:
        """Look at the images, before any network does.

        Args:
            images: The batch.
            shared: Whether ranks share it, so that the next scale cannot be known yet.
        """
        largest, votes = torch.linalg.vector_norm(images.flatten(1), torch.inf, dim=1), len(images) >= _CROWD
        if self.log_scale is not None and not shared and _is_supported(images):
            from driftproof.kernels import triton_quarantine

            rule = {"far": _FAR, "limit": _STEP, "momentum": _MOMENTUM}
            good, bad, any_good, log_scale = triton_quarantine.judge(largest, self.log_scale, **rule, votes=votes)
            return Judgement(good, bad, any_good, None, log_scale)
        largest = largest.float().log()
        excess = largest - (_median(largest) if self.log_scale is None else self.log_scale)
        good = excess <= _FAR
        if votes:
            finite = excess < torch.inf
            good = good | (finite & (finite.sum() > 2 * good.sum()))
        return Judgement(good, ~good, good.any(), largest, None)

    def update(self, judgement: Judgement, distributed: Distributed) -> None:
        """Follow the scale of the stream over all ranks."""
        largest, usual = judgement.largest, self.log_scale
        if largest is None:
            self.log_scale = judgement.log_scale
            return
        if usual is None:
            rows = distributed.map_global_batch(largest, lambda rows: _median(*distributed.sum(rows)).expand_as(rows))
            usual = rows[0]
        # What is not finite says nothing about the scale, nor does a black image.
        excess = (largest - usual).nan_to_num(0.0, 0.0, 0.0).clamp(-_STEP, _STEP)
        self.log_scale = torch.add(usual, distributed.mean(excess), alpha=_MOMENTUM)


def replace_bad(images: Tensor, good: Tensor) -> Tensor:
    """Return the batch with its first good image in the place of the bad ones; nothing finite if none is good."""
    if _is_supported(images) and _is_dense(images):
        from driftproof.kernels import triton_quarantine

        return triton_quarantine.replace_bad(images, good)
    any_good, first = good.max(dim=0, keepdim=True)
    stand_in = images.index_select(0, first) / any_good  # a division by one or zero
    return images.where(mask_like(good, images), stand_in)


def mask_like(mask: Tensor, like: Tensor) -> Tensor:
    """Reshape a mask of images, (N,), to broadcast against a tensor of N rows."""
    return mask if like.ndim == 1 else mask.view(-1, *[1] * (like.ndim - 1))


def expand_mask(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Expand a mask of images, (N,), to one of samples: of pixels, where `shape` is (N, H, W)."""
    return mask if len(shape) == 1 else mask.view(-1, 1, 1).expand(shape)


def _is_supported(images: Tensor) -> bool:
    return images.is_cuda and len(images) <= _MOST and runs_triton(images.device)


def _is_dense(images: Tensor) -> bool:
    """Whether each image is in one piece, one after the other."""
    return images.is_contiguous() or (images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last))


def _median(values: Tensor) -> Tensor:
    """The lower median of the finite values, without a branch; 0 if there are none."""
    valid = values.isfinite()
    ordered = values.where(valid, torch.inf).sort().values
    return ordered.gather(0, ((valid.sum() - 1).clamp(min=0) // 2).reshape(1))[0].nan_to_num(posinf=0.0)
