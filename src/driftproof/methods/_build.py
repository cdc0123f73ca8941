"""What the methods that take steps have in common."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, Settings
from driftproof.losses import Loss
from driftproof.regularizers import Regularizer
from driftproof.scopes import Scope
from driftproof.selection import Selection
from driftproof.statistics import Batch, Statistics

__all__ = ["Options", "stepping"]


class Options(Settings, total=False):
    """Keywords of every method that takes steps, besides `lr` and `select`; `stepping` documents them."""

    statistics: Statistics | None
    mean_entropy: float | None
    scope: Scope | None
    optimizer: Callable[..., torch.optim.Optimizer]


def stepping(
    model: nn.Module,
    *,
    loss: Loss,
    moves: Scope,
    lr: float,
    select: Selection | None,
    regularizer: Regularizer | None = None,
    own_mean_entropy: float | None = None,
    statistics: Statistics | None = None,
    mean_entropy: float | None = None,
    scope: Scope | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    **settings: Unpack[Settings],
) -> Adapter:
    """An adapter with the method's own choices where the caller made none.

    Args:
        model: The trained model.
        loss: The method's loss.
        moves: The method's scope.
        lr: Learning rate.
        select: Which samples to learn from.
        regularizer: The method's regularizer.
        own_mean_entropy: The method's own λ_max; None leaves it to the selection.
        statistics: What batch norm uses; None is the batch's own statistics.
        mean_entropy: λ_max; None is 0.5 with `ConfidenceDifference` and the method's own otherwise.
        scope: What moves; None is the method's own.
        optimizer: Called as `optimizer(parameters, lr=lr)`.
        **settings: Keywords of `Adapter`.
    """
    return Adapter(
        model,
        scope=scope or moves,
        statistics=statistics or Batch(),
        loss=loss,
        select=select,
        mean_entropy=own_mean_entropy if mean_entropy is None else mean_entropy,
        regularizer=regularizer,
        optimizer=partial(optimizer, lr=lr),
        **settings,
    )
