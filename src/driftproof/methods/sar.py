"""SAR: learn from reliable samples towards a flat minimum, and start anew when the entropy collapses."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.after import ResetWhen
from driftproof.gradients import SharpnessAware
from driftproof.losses import Entropy, Loss
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.selection import EntropyBelow, Selection
from driftproof.validation import check_keywords

__all__ = ["sar"]


@check_keywords
def sar(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    entropy_threshold: float | None = None,
    rho: float = 0.05,
    reset_below: float | None = None,
    loss: Loss | None = None,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """Sharpness-aware entropy minimization on certain samples, with a reset when their entropy collapses.

    Open choices taken: the authors reset below 0.2, which is for 1,000 classes; here it is that share of ln C. The base
    optimizer is Adam (theirs is SGD, which hardly moves on CIFAR). A reset leaves neither momentum nor the old average,
    and an empty selection takes no step. All norms train; the authors leave out the last stage of a ResNet.

    Args:
        model: The trained model.
        lr: Learning rate.
        entropy_threshold: E0 in nats; None is 0.4 ln C.
        rho: ρ, the length of the perturbation.
        reset_below: Average entropy of kept samples below which weights and optimizer are reset; None is 0.029 ln C.
        loss: Replaces the entropy, such as `losses.COME()`.
        select: Replaces the filter.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.sar(model)
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Niu et al., "Towards Stable Test-Time Adaptation in Dynamic Wild World", ICLR 2023.
    """
    options.setdefault("gradient", SharpnessAware(rho))
    loss, select = loss or Entropy(), select or EntropyBelow(entropy_threshold)
    own = [ResetWhen(threshold=reset_below)]
    return build_adapter(model, loss=loss, lr=lr, select=select, own_after=own, **options)
