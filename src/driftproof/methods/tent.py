"""TENT: minimise entropy by the affine parameters of normalisation."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, Settings
from driftproof.losses import Entropy
from driftproof.scopes import Scope, norm_affine
from driftproof.selection import Selection
from driftproof.statistics import Batch, Statistics

__all__ = ["tent"]


def tent(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    select: Selection | None = None,
    statistics: Statistics | None = None,
    mean_entropy: float | None = None,
    scope: Scope | None = None,
    optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    **settings: Unpack[Settings],
) -> Adapter:
    """Entropy minimisation on normalisation's affine parameters with batch statistics.

    L = mean of H(ŷ) over all samples, open-set ones included; with `select=ConfidenceDifference()` the paper's method.

    Open choices taken: no mean-entropy term in the baseline; the prediction is the one before the update.

    Example:
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.tent(model, select=dp.ConfidenceDifference())
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Wang et al., "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021.
    """
    return Adapter(
        model,
        scope=scope or norm_affine(),
        statistics=statistics or Batch(),
        loss=Entropy(),
        select=select,
        mean_entropy=mean_entropy,
        optimiser=partial(optimiser, lr=lr),
        **settings,
    )
