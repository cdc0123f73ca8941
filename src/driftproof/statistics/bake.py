"""Write what a rule normalizes with into the running statistics of an ordinary model."""

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from driftproof.network import BatchNormHook, Network
from driftproof.norms import BatchNorm, batch_norms
from driftproof.statistics.base import Statistics

__all__ = ["bake_statistics"]


def bake_statistics(
    plain: nn.Module, network: Network, rule: Statistics, batches: Iterable[tuple[Tensor, Tensor | None]]
) -> None:
    """Replace running statistics by what a rule normalizes batches with, averaged over them.

    Args:
        plain: A copy of the network's model, without hooks.
        network: Follows the rule; unchanged.
        rule: What its layers normalize with.
        batches: Images, and the mask of the samples that statistics are taken from; None is all of them.
    """
    made = (rule.make_hook(index, name, layer) for index, (name, layer) in enumerate(batch_norms(plain)))
    averages = {hook: _Average() for hook in made if hook is not None}
    for hook, live in zip(averages, network.hooks, strict=True):
        for name, value in live._buffers.items():
            hook._buffers[name] = None if value is None else value.clone()
    with ExitStack() as stack:
        for hook, average in averages.items():
            add = partial(_add_layer, hook, average)
            stack.callback(hook.layer.register_forward_pre_hook(add, with_kwargs=True).remove)
        for images, mask in batches:
            for hook in averages:
                hook.settings.mask = mask
            try:
                plain(images.clone())  # a model may write into its input
            finally:
                for hook in averages:
                    hook.restore()
                    hook.rollback()
    for hook, average in averages.items():
        if average.count:  # a layer that no pass went through keeps what it has
            _set_running(hook.layer, *average.compute())


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


def _add_layer(
    hook: BatchNormHook, average: _Average, layer: BatchNorm, inputs: tuple[Tensor, ...], named: dict[str, Any]
) -> None:
    """Let a hook decide what its layer normalizes with, and add it to the average."""
    x = (inputs or tuple(named.values()))[0]
    hook.pre_forward(layer, (x,))
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:
        axes = [axis for axis in range(x.ndim) if axis != 1]
        variance, mean = torch.var_mean(x.float() if x.dtype.itemsize < 4 else x, dim=axes, correction=0)
    average.add(mean, variance)


def _set_running(layer: BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Give a layer running statistics, also one that kept none."""
    like = layer.weight if layer.running_mean is None else layer.running_mean
    dtype = torch.float32 if like is None else like.dtype
    layer.running_mean, layer.running_var = mean.to(dtype), variance.to(dtype)
    layer.track_running_stats = True
