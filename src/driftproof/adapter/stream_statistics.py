"""The answering network as an ordinary model, with statistics of the stream."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from driftproof.adapter.method import Method
from driftproof.adapter.state import State
from driftproof.errors import CallOrderError, InputError
from driftproof.network import tf32_mode
from driftproof.problems import describe_batch_mistake
from driftproof.statistics.bake import bake_statistics

__all__ = ["RecentImages", "list_batches", "unwrap_with"]

_ENOUGH_IMAGES, _ENOUGH_PIXELS = 128, 1 << 23


class RecentImages:
    """References to the last batches: as many as make 128 images, or 8 million pixels, and at least one."""

    def __init__(self) -> None:
        self._batches: deque[Tensor] = deque()
        self._images = self._pixels = 0

    def add(self, images: Tensor) -> None:
        """Keep a batch, and drop old ones that are not needed any more."""
        self._batches.append(images)
        self._images += len(images)
        self._pixels += _count_pixels(images)
        while len(self._batches) > 1:
            oldest = self._batches[0]
            images_left, pixels_left = self._images - len(oldest), self._pixels - _count_pixels(oldest)
            if images_left < _ENOUGH_IMAGES and pixels_left < _ENOUGH_PIXELS:
                return
            self._batches.popleft()
            self._images, self._pixels = images_left, pixels_left

    def clear(self) -> None:
        """Drop all."""
        self.__init__()  # type: ignore[misc]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def list_batches(given: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Return one batch, or several, as a list; anything else raises an error."""
    batches = [given] if isinstance(given, Tensor) else list(given)
    for images in batches:
        if not isinstance(images, Tensor) or not torch.is_floating_point(images) or images.ndim < 2:
            found, advice = describe_batch_mistake(images)
            raise InputError(
                f'Expected `statistics` to be "training", "stream" or batches of images, but got {found}. {advice}'
            )
    if not batches or not all(len(images) for images in batches):
        raise InputError("Expected `statistics` to be batches of at least one image, but got none.")
    return batches


def unwrap_with(
    method: Method, state: State, batches: Sequence[Tensor], *, falls_back: bool, of_training: bool
) -> nn.Module:
    """Return the network that answers now as an ordinary module, with the statistics of these batches.

    Args:
        method: Its rule decides what batch norms use.
        state: The adapter's; unchanged.
        batches: Images of the stream.
        falls_back: Whether a guard has the frozen network answer.
        of_training: Whether it does so with the statistics of its training.
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


def _count_pixels(images: Tensor) -> int:
    return images.numel() // max(images.shape[1], 1)
