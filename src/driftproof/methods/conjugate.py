"""Conjugate pseudo-labels."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, Settings
from driftproof.losses import Conjugate
from driftproof.scopes import Scope, norm_affine
from driftproof.selection import Selection
from driftproof.statistics import Batch, Statistics

__all__ = ["conjugate"]


def conjugate(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    epsilon: float = 0.0,
    temperature: float = 1.0,
    select: Selection | None = None,
    statistics: Statistics | None = None,
    mean_entropy: float | None = None,
    scope: Scope | None = None,
    optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    **settings: Unpack[Settings],
) -> Adapter:
    """Minimise the conjugate of the training loss, on normalisation's affine parameters.

    For a model trained with cross-entropy (ε = 0, T = 1) this is `tent`, step for step. The paper's row differs from
    its TENT row, so it was probably run with the reference code's default for PolyLoss models, ε = 6 (ImageNet: 8).

    Open choices taken: ε = 0 by default, since it is what a cross-entropy model calls for; the prediction is the one
    before the update (the reference code: `output="after"`).

    Args:
        model: The trained model.
        lr: Learning rate.
        epsilon: ε of the PolyLoss the model was trained with.
        temperature: T, divides the logits inside the loss.
        select: See `driftproof.methods`, as for all that follows.
        statistics: What batch norm uses.
        mean_entropy: λ_max.
        scope: What moves.
        optimiser: Makes the optimiser.
        **settings: Keywords of `Adapter`.

    Example:
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.conjugate(model, epsilon=6.0)
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Goyal et al., "Test-Time Adaptation via Conjugate Pseudo-labels", NeurIPS 2022.
    """
    return Adapter(
        model,
        scope=scope or norm_affine(),
        statistics=statistics or Batch(),
        loss=Conjugate(epsilon, temperature),
        select=select,
        mean_entropy=mean_entropy,
        optimiser=partial(optimiser, lr=lr),
        **settings,
    )
