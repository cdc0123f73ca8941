"""ENT: minimise entropy by every parameter."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, Settings
from driftproof.losses import Entropy
from driftproof.scopes import Scope, everything
from driftproof.selection import Selection
from driftproof.statistics import Batch, Statistics

__all__ = ["ent"]


def ent(
    model: nn.Module,
    *,
    lr: float = 1e-4,
    select: Selection | None = None,
    statistics: Statistics | None = None,
    mean_entropy: float | None = None,
    scope: Scope | None = None,
    optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    **settings: Unpack[Settings],
) -> Adapter:
    """Entropy minimisation on every parameter with batch statistics.

    As `tent`, but all parameters move, at a tenth of its learning rate.

    Example:
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.ent(model, select=dp.ConfidenceDifference())
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])
    """
    return Adapter(
        model,
        scope=scope or everything(),
        statistics=statistics or Batch(),
        loss=Entropy(),
        select=select,
        mean_entropy=mean_entropy,
        optimiser=partial(optimiser, lr=lr),
        **settings,
    )
