"""DeYO: learn from samples whose label depends on the shape of the object."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.augment import Augment, shuffle_patches
from driftproof.losses import Entropy, Loss
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.selection import LabelProbabilityDrop, Selection
from driftproof.validation import check_keywords

__all__ = ["deyo"]


@check_keywords
def deyo(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    drop: float = 0.2,
    entropy_threshold: float | None = None,
    weight_threshold: float | None = None,
    augment: Augment = shuffle_patches,
    loss: Loss | None = None,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """Entropy minimization on certain samples whose label loses probability when their patches are shuffled.

    Open choices taken: all norms train (the authors leave out the last stage of a ResNet); all thresholds follow the
    number of classes. A given `select` multiplies the weights, since without its own selection DeYO is TENT.

    Args:
        model: The trained model.
        lr: Learning rate.
        drop: τ, how much probability the label must lose.
        entropy_threshold: The largest entropy in nats; None is 0.5 ln C.
        weight_threshold: E0 of the weights in nats; None is 0.4 ln C.
        augment: Destroys the object.
        loss: Replaces the entropy, such as `losses.COME()`.
        select: Which samples to learn from besides; None is all of them.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.deyo(model)
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Lee et al., "Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors",
        ICLR 2024.
    """
    own = LabelProbabilityDrop(drop, entropy_threshold, weight_threshold, augment)
    loss, select = loss or Entropy(), own if select is None else own & select
    return build_adapter(model, loss=loss, lr=lr, select=select, **options)
