"""SoTTA: sharpness-aware entropy minimization on a bank of confident images, balanced over classes."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.gradients import SharpnessAware
from driftproof.losses import Entropy
from driftproof.memories import HUS
from driftproof.methods._build import MethodOptions, build_adapter, with_defaults
from driftproof.selection import Selection
from driftproof.statistics import Running
from driftproof.validation import check_keywords

__all__ = ["sotta"]


@check_keywords
def sotta(
    model: nn.Module, *, lr: float = 1e-3, capacity: int = 64, update_every: int = 64, confidence: float | None = None,
    rho: float = 0.05, statistics_momentum: float = 0.2, select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:  # fmt: skip
    """Entropy minimization with a sharpness-aware gradient on confident images of a balanced bank.

    The threshold keeps unknown images out of the bank. Predictions use running statistics that start at the source and
    move with the bank alone.

    Open choices taken: one step per batch, also where a batch of 200 images made three in the published code; both
    passes of the gradient move the statistics, as published, which makes 0.36 of two shares of 0.2; the loss sums over
    classes, as in the corrected code; all norms train, where the authors leave out the last stage of a ResNet.

    Args:
        model: The trained model.
        lr: Learning rate.
        capacity: How many images the bank holds.
        update_every: Images from one step to the next.
        confidence: C₀, the least confidence of an image in the bank; None follows the number of classes, see
            `memories.HUS`. It is for plain networks: one trained with AugMix is less confident and fills it slowly.
        rho: ρ, the length of the perturbation.
        statistics_momentum: Share of a new batch in the running statistics.
        select: Which images of the bank to learn from; None is all of them.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch, driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.sotta(model)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Gong et al., "SoTTA: Robust Test-Time Adaptation on Noisy Data Streams", NeurIPS 2023.
    """
    options = with_defaults(
        options, memory=HUS(capacity, confidence=confidence, update_every=update_every), gradient=SharpnessAware(rho),
        statistics=Running(statistics_momentum, learn_with="batch"),
    )  # fmt: skip
    return build_adapter(model, loss=Entropy(), lr=lr, select=select, **options)
