"""TENT: minimize entropy by the affine parameters of normalization."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.losses import Entropy, Loss
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.selection import Selection
from driftproof.validation import check_keywords

__all__ = ["tent"]


@check_keywords
def tent(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    loss: Loss | None = None,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """Entropy minimization on normalization's affine parameters with batch statistics.

    L = mean of H(ŷ) over all samples, open-set ones included; with `select=ConfidenceDifference()` the paper's method.

    Open choices taken: no mean-entropy term in the baseline; the prediction is the one before the update.

    Args:
        model: The trained model.
        lr: Learning rate.
        loss: Replaces the entropy, such as `losses.COME()`.
        select: Which samples to learn from; None is all of them.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.tent(model, select=dp.ConfidenceDifference())
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Wang et al., "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021.
    """
    loss = loss or Entropy()
    return build_adapter(model, loss=loss, lr=lr, select=select, **options)
