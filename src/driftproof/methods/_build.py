"""Builds the adapters of all methods that train parameters."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, AdapterOptions
from driftproof.adapter.method import Schedule
from driftproof.after import After
from driftproof.detectors import Detector
from driftproof.gradients import Gradient
from driftproof.losses import Loss
from driftproof.memories import Memory
from driftproof.optimizers import bind_learning_rate
from driftproof.regularizers import Regularizer
from driftproof.scopes import Scope, norm_affine
from driftproof.selection import Selection
from driftproof.statistics import Batch, Statistics
from driftproof.teacher import EMA
from driftproof.validation import check_learning_rate

__all__ = ["MethodOptions", "build_adapter", "by_classes", "cosine_restarts", "join_filter", "with_defaults"]


class MethodOptions(AdapterOptions, total=False):
    """Keywords of every method that trains parameters, besides `lr` and `select`; `Adapter` documents them."""

    statistics: Statistics | Literal["auto"] | None
    mean_entropy: float | None
    scope: Scope | None
    optimizer: Callable[..., torch.optim.Optimizer]
    lr_schedule: Schedule | None
    gradient: Gradient | None
    memory: Memory | None
    teacher: EMA | None
    detector: Detector | None
    after: After | Sequence[After]


def build_adapter(
    model: nn.Module,
    *,
    loss: Loss,
    lr: float,
    select: Selection | None,
    default_scope: Scope | None = None,
    regularizer: Regularizer | None = None,
    default_mean_entropy: float | None = None,
    own_after: Sequence[After] = (),
    statistics: Statistics | Literal["auto"] | None = None,
    mean_entropy: float | None = None,
    scope: Scope | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    lr_schedule: Schedule | None = None,
    gradient: Gradient | None = None,
    memory: Memory | None = None,
    teacher: EMA | None = None,
    detector: Detector | None = None,
    after: After | Sequence[After] = (),
    **options: Unpack[AdapterOptions],
) -> Adapter:
    """Build an adapter with the method's own choices where the caller made none.

    Args:
        model: The trained model.
        loss: The method's loss.
        lr: Learning rate.
        select: Which samples to learn from.
        default_scope: The method's scope; None is the affine parameters of the normalization layers.
        regularizer: The method's regularizer.
        default_mean_entropy: The method's own λ_max; None leaves it to the selection.
        own_after: What the method itself does after each optimizer step, before `after`.
        statistics: What batch norm uses; None is the batch's own statistics.
        mean_entropy: λ_max; None is 0.5 with `ConfidenceDifference` and the method's own otherwise.
        scope: What trains; None is the method's own.
        optimizer: Called as `optimizer(parameters, lr=lr)`; without `lr` if it has a learning rate of its own.
        lr_schedule: As for `Adapter`.
        gradient: As for `Adapter`.
        memory: As for `Adapter`.
        teacher: As for `Adapter`.
        detector: As for `Adapter`.
        after: As for `Adapter`.
        **options: Keywords of `Adapter`.
    """
    return Adapter(
        model,
        scope=scope or default_scope or norm_affine(),
        statistics=statistics or Batch(),
        loss=loss,
        select=select,
        mean_entropy=default_mean_entropy if mean_entropy is None else mean_entropy,
        regularizer=regularizer,
        gradient=gradient,
        optimizer=bind_learning_rate(optimizer, check_learning_rate(lr)),
        lr_schedule=lr_schedule,
        memory=memory,
        teacher=teacher,
        detector=detector,
        after=(*own_after, *((after,) if isinstance(after, After) else after)),
        **options,
    )


def with_defaults(options: MethodOptions, **own: Unpack[MethodOptions]) -> MethodOptions:
    """The method's own options where the caller gave none."""
    return {**own, **options}


def by_classes(model: nn.Module, ten: float, hundred: float, thousand: float) -> float:
    """What authors chose for about 10, 100 and 1,000 classes, by those of the last linear layer."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    classes = layers[-1].out_features if layers else 0
    return ten if classes < 32 else hundred if classes < 317 else thousand


def cosine_restarts(period: int) -> Schedule:
    """A schedule whose factor falls from one to zero in `period` steps, and starts anew."""
    return partial(_cosine, period=period)


def _cosine(steps: Tensor, *, period: int) -> Tensor:
    return 0.5 + 0.5 * torch.cos(math.pi / period * (steps % period))


def join_filter(own: Selection, select: Selection | None) -> Selection:
    """The selection of a method that has a filter of its own: a given one replaces it, or acts beside it."""
    if select is None or not getattr(select, "keeps_filter", False):
        return own if select is None else select
    return own & select
