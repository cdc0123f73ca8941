"""The answering network as an ordinary model, with statistics of the stream."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from driftproof.adapter.method import Method
from driftproof.adapter.state import State
from driftproof.errors import CallOrderError, InputError
from driftproof.network import tf32_mode
from driftproof.problems import check_batch
from driftproof.statistics.bake import bake_statistics

__all__ = ["RecentBatch", "keep_recent", "list_batches", "unwrap_with"]

_ENOUGH_IMAGES, _ENOUGH_PIXELS = 128, 1 << 23


class RecentBatch(NamedTuple):
    """A batch, and how many images and pixels came up to it."""

    images: Tensor
    num_images: int
    num_pixels: int


def keep_recent(batches: deque[RecentBatch], images: Tensor) -> None:
    """Add a batch, and drop old ones: 128 images or 8 million pixels are enough, and one batch stays in any case."""
    num_images, num_pixels = batches[-1][1:] if batches else (0, 0)
    pixels = images.numel() // max(images.shape[1], 1)
    batches.append(RecentBatch(images, num_images + len(images), num_pixels + pixels))
    while len(batches) > 1:
        first, last = batches[0], batches[-1]
        has_images = last.num_images - first.num_images >= _ENOUGH_IMAGES
        if not has_images and last.num_pixels - first.num_pixels < _ENOUGH_PIXELS:
            return
        batches.popleft()


def list_batches(given: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Return one batch, or several, as a list; anything else raises an error."""
    batches = [given] if isinstance(given, Tensor) else list(given)
    for images in batches:
        check_batch("each batch of `statistics`", images)
    if not batches:
        raise InputError("Expected `statistics` to hold at least one batch, but got none.")
    return batches


def unwrap_with(
    method: Method, state: State, batches: Sequence[Tensor], *, falls_back: bool, of_training: bool
) -> nn.Module:
    """Return the network that answers now as an ordinary module, with the statistics of these batches.

    That is the frozen network while a guard falls back, perhaps with the statistics of its training.
    """
    if not batches:
        raise CallOrderError("Expected a batch before `unwrap` asks for the stream's statistics, or pass images.")
    network, rule, can_learn = state.network, method.statistics, method.statistics.can_learn()
    if falls_back or (can_learn is not None and not bool(can_learn)):
        network, rule = state.source, method.source_statistics or rule
    plain = network.to_plain_module()
    if not of_training:
        with torch.inference_mode(False), torch.no_grad(), tf32_mode(network.precision):
            good = [images[state.quarantine.judge(images).good] for images in batches]
            good = [images for images in good if len(images)]
            masks = [None if rule.of is None else rule.sample_mask(state.make_step(images)) for images in good]
            state.finish_step()
            bake_statistics(plain, network, rule, zip(good, masks, strict=True))
    return plain
