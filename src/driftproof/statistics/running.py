"""Normalize with running statistics that advance with what is learned from."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from driftproof.errors import ConfigurationError
from driftproof.kernels import interpolated_batch_norm
from driftproof.network import BatchNormHook
from driftproof.norms import BatchNorm
from driftproof.statistics.base import Statistics, can_fuse_selected, check_source_statistics, values_per_channel
from driftproof.statistics.moments import StatisticsGradient, batch_moments
from driftproof.validation import check_choice

__all__ = ["Running"]


class Running(Statistics):
    """A moving average of batch statistics that starts at those of training.

    μ ← (1 − m) μ + m μ_batch and likewise σ², at every pass that is learned from; gradients flow through the batch's
    share, and the history is a constant. With a memory, only passes over the memory are learned from: the batch itself
    is predicted with the statistics as they are. Without one, every pass both predicts and learns.

    Args:
        momentum: m, the share of a new batch, in (0, 1].
        learn_with: What a pass that is learned from normalizes with: the "running" statistics including its own batch,
            as RoTTA's RobustBN, or the "batch" alone, as batch norm in training mode. The latter averages unbiased
            variances, as torch does.
    """

    def __init__(self, momentum: float, *, learn_with: Literal["running", "batch"] = "running") -> None:
        super().__init__()
        if not 0.0 < momentum <= 1.0:
            raise ConfigurationError(f"Expected `momentum` to be in (0, 1], but got {momentum}.")
        check_choice("`learn_with`", learn_with, ("running", "batch"))
        self.momentum = momentum
        self.learn_with = learn_with

    def make_hook(self, index: int, name: str, layer: BatchNorm) -> BatchNormHook:
        """A hook that keeps the average of one layer."""
        check_source_statistics(self, name, layer)
        return _RunningHook(layer, self.momentum, with_batch=self.learn_with == "batch")


class _RunningHook(BatchNormHook):
    mean: Tensor
    variance: Tensor

    def __init__(self, layer: BatchNorm, momentum: float, *, with_batch: bool) -> None:
        super().__init__(layer)
        self._momentum = momentum
        self._with_batch = with_batch
        self._seen: tuple[Tensor, Tensor] | None = None
        self._all: Tensor | None = None  # the share of the stream in its statistics, for the kernel
        self.register_buffer("mean", None)
        self.register_buffer("variance", None)
        self.reset()

    def normalize(self, layer: BatchNorm, x: Tensor) -> Tensor:
        mask = self.settings.mask
        can_reduce = self.settings.learns and self.distributed.size == 1 and values_per_channel(x) >= 2
        if can_reduce and mask is not None and can_fuse_selected(layer, x, mask):
            return self._normalize_fused(layer, x, mask)
        x, mean, variance = self._statistics(layer, x)
        return F.batch_norm(x, mean, variance, layer.weight, layer.bias, False, 0.0, layer.eps)

    def _normalize_fused(self, layer: BatchNorm, x: Tensor, mask: Tensor) -> Tensor:
        """The output of a pass over selected samples that is learned from: statistics and output from one kernel."""
        if self._all is None or self._all.device != x.device:
            self._all = torch.ones(1, device=x.device)
        mean, variance = self._seen or (self.mean, self.variance)
        stream: tuple[Tensor | None, Tensor | None] = (None, None) if self._with_batch else (mean, variance)
        y, new_mean, new_variance = interpolated_batch_norm(
            x, layer.weight, layer.bias, mean, variance, *stream, self._all, self._momentum, layer.eps, mask
        )
        if self._with_batch:
            selected = mask.sum(dtype=new_variance.dtype) * (values_per_channel(x) // len(x))
            values = torch.where(selected < 2, values_per_channel(x), selected)
            new_mean = torch.lerp(mean.float(), new_mean, self._momentum)
            new_variance = torch.lerp(variance.float(), new_variance * (values / (values - 1)), self._momentum)
        self._seen = new_mean.to(mean.dtype), new_variance.to(mean.dtype)
        return y

    def pre_forward(self, layer: BatchNorm, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, mean, variance = self._statistics(layer, inputs[0])
        self.set_statistics(mean, variance)
        return (x, *inputs[1:])

    def _statistics(self, layer: BatchNorm, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The input, with the gradient through the batch's share, and what to normalize it with."""
        if not self.settings.learns or values_per_channel(x) * self.distributed.size < 2:
            return x, self.mean, self.variance
        dtype, share = self.mean.dtype, 1.0 if self._with_batch else self._momentum
        with torch.no_grad():
            batch_mean, variance, count, weights = batch_moments(x, self.distributed, self.settings.mask)
            values = count / self.distributed.copies
            unbiased = variance * (values / (values - 1)) if self._with_batch else variance
            # A second pass over the same batch advances them again.
            mean, spread = self._seen or (self.mean, self.variance)
            mean = torch.lerp(mean, batch_mean.to(dtype), self._momentum)
            self._seen = mean, torch.lerp(spread, unbiased.to(dtype), self._momentum)
            used = (batch_mean, variance) if self._with_batch else self._seen
        constants = (batch_mean, torch.zeros_like(batch_mean), used[0], used[1] + layer.eps, count, 1.0, share)
        ranks = self.distributed if self.distributed.size > 1 else None
        tied: Tensor = StatisticsGradient.apply(x, *constants, weights, ranks)  # type: ignore[no-untyped-call]
        return tied, used[0].to(dtype), used[1].to(dtype)

    def reset(self) -> None:
        """Return to the statistics of training."""
        mean, variance = self.source_statistics
        assert mean is not None and variance is not None  # make_hook refuses other layers
        self.mean, self.variance, self._seen = mean.clone(), variance.clone(), None

    def commit(self, learned: Tensor | None = None) -> None:
        """Keep what the last pass saw, where it was learned from."""
        if self._seen is not None:
            mean, variance = self._seen
            self._seen = None
            self.mean = mean if learned is None else torch.where(learned, mean, self.mean)
            self.variance = variance if learned is None else torch.where(learned, variance, self.variance)

    def rollback(self) -> None:
        """Drop what the last pass saw."""
        self._seen = None
