"""Write the statistics that a stream showed into an ordinary model."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from driftproof.adapter.method import Method
from driftproof.adapter.state import State
from driftproof.errors import CallOrderError, InputError
from driftproof.network import BatchNormHook, Network, tf32_mode
from driftproof.norms import BatchNorm, batch_norms
from driftproof.problems import describe_batch_mistake
from driftproof.statistics import Statistics

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
            _bake(plain, network, rule, zip(good, masks, strict=True))
    return plain


def _bake(
    plain: nn.Module, network: Network, rule: Statistics, batches: Iterable[tuple[Tensor, Tensor | None]]
) -> None:
    """Replace running statistics by what the rule normalizes these batches with, averaged over them.

    A batch comes with the mask of the samples that statistics are taken from; None is all of them.
    """
    hooks = _copy_hooks(plain, network, rule)
    averages = {hook: _Average() for hook in hooks}
    for images, mask in batches:
        with _recording(hooks, averages, mask):
            plain(images.clone())  # a model may write into its input
    for hook, average in averages.items():
        if average.count:  # a layer that no pass went through keeps what it has
            _set_running(hook.layer, *average.compute())


def _copy_hooks(plain: nn.Module, network: Network, rule: Statistics) -> list[BatchNormHook]:
    """Make hooks for a copy of the network's model that start where the network's own are."""
    made = (rule.make_hook(index, name, layer) for index, (name, layer) in enumerate(batch_norms(plain)))
    hooks = [hook for hook in made if hook is not None]
    for hook, live in zip(hooks, network.hooks, strict=True):
        for name, value in live._buffers.items():
            hook._buffers[name] = None if value is None else value.clone()
    return hooks


class _Average:
    """The mean and variance of a mixture of batches, channel by channel."""

    count = 0
    _total: Tensor

    def add(self, mean: Tensor, variance: Tensor) -> None:
        """Add what one batch was normalized with."""
        wide = mean.double()
        moments = torch.stack([wide, variance.double() + wide**2])
        self._total = self._total + moments if self.count else moments
        self.count += 1

    def compute(self) -> tuple[Tensor, Tensor]:
        """The mean and the variance, which includes that of the means."""
        mean, square = self._total / self.count
        return mean, (square - mean**2).clamp(min=0.0)


@contextmanager
def _recording(
    hooks: list[BatchNormHook], averages: dict[BatchNormHook, _Average], mask: Tensor | None
) -> Iterator[None]:
    """Let the hooks decide, layer by layer, and add up what they chose."""

    def enter(hook: BatchNormHook, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        x = (inputs or tuple(named.values()))[0]
        hook.pre_forward(hook.layer, (x,))
        mean, variance = hook.layer.running_mean, hook.layer.running_var
        if mean is None or variance is None:
            axes = [axis for axis in range(x.ndim) if axis != 1]
            variance, mean = torch.var_mean(x.float() if x.dtype.itemsize < 4 else x, dim=axes, correction=0)
        averages[hook].add(mean, variance)

    with ExitStack() as stack:
        for hook in hooks:
            hook.settings.mask = mask
            handle = hook.layer.register_forward_pre_hook(partial(_without_layer, enter, hook), with_kwargs=True)
            stack.callback(handle.remove)
            stack.callback(hook.rollback)
            stack.callback(hook.restore)
        yield


def _without_layer(
    enter: Callable[..., None], hook: BatchNormHook, _: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Any]
) -> None:
    enter(hook, inputs, named)


def _set_running(layer: BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Give a layer running statistics, also one that kept none."""
    like = layer.weight if layer.running_mean is None else layer.running_mean
    dtype = torch.float32 if like is None else like.dtype
    layer.running_mean, layer.running_var = mean.to(dtype), variance.to(dtype)
    layer.track_running_stats = True


def _count_pixels(images: Tensor) -> int:
    return images.numel() // max(images.shape[1], 1)
