"""GCE: robust pseudo-labelling (RPL)."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, Settings
from driftproof.losses import GCE
from driftproof.scopes import Scope, norm_affine
from driftproof.selection import Selection
from driftproof.statistics import Batch, Statistics

__all__ = ["gce"]


def gce(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    q: float = 0.8,
    select: Selection | None = None,
    statistics: Statistics | None = None,
    mean_entropy: float | None = None,
    scope: Scope | None = None,
    optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    **settings: Unpack[Settings],
) -> Adapter:
    """Generalised cross-entropy with the model's own labels, on normalisation's affine parameters.

    Open choice taken: the prediction is the one before the update, for comparability; the reference code predicts after
    it, which is `output="after"`.

    Args:
        model: The trained model.
        lr: Learning rate.
        q: q of the loss.
        select: See `driftproof.methods`, as for all that follows.
        statistics: What batch norm uses.
        mean_entropy: λ_max.
        scope: What moves.
        optimiser: Makes the optimiser.
        **settings: Keywords of `Adapter`.

    Example:
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.gce(model, q=0.8)
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Rusak et al., "If your data distribution shifts, use self-learning", TMLR 2022.
    """
    return Adapter(
        model,
        scope=scope or norm_affine(),
        statistics=statistics or Batch(),
        loss=GCE(q),
        select=select,
        mean_entropy=mean_entropy,
        optimiser=partial(optimiser, lr=lr),
        **settings,
    )
