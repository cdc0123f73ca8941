"""CMF: ROID with a filtered average of the parameters in place of the source."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.after import MomentumFilter
from driftproof.augment import Augment, geometric_jitter
from driftproof.losses import SoftLikelihoodRatio, ViewConsistency
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.selection import CertainAndDiverse, Selection
from driftproof.validation import check_keywords

__all__ = ["cmf"]


@check_keywords
def cmf(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    rate: float = 0.01,
    pull: float = 0.01,
    noise: float | None = None,
    augment: Augment = geometric_jitter,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """ROID's loss and weights; parameters are pulled to a hidden model that follows them slowly.

    Open choices taken: as for `roid`; q follows the number of trainable parameters and is at most 0.5.

    Args:
        model: The trained model.
        lr: Learning rate.
        rate: Share of the way to the hidden model after each step.
        pull: Share of the hidden model's way back to the source.
        noise: q of the filter, see `after.MomentumFilter`.
        augment: Makes the view for the consistency loss.
        select: Replaces the weights by certainty and diversity.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.cmf(model)
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Lee and Chang, "Continual Momentum Filtering on Parameter Space for Online Test-time Adaptation", ICLR 2024.
    """
    options.setdefault("average_over", "batch")
    loss, select = SoftLikelihoodRatio() + ViewConsistency(augment), select or CertainAndDiverse()
    own = [MomentumFilter(rate, pull, noise)]
    return build_adapter(model, loss=loss, lr=lr, select=select, own_after=own, **options)
