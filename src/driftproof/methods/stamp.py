"""STAMP: certainty-weighted entropy on a bank of images that many views and the frozen network agree on."""

import torch
from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.augment import Augment, strong_view
from driftproof.gradients import SharpnessAware
from driftproof.losses import SelfWeightedEntropy
from driftproof.memories import RBM
from driftproof.methods._build import MethodOptions, build_adapter, by_classes, cosine_restarts, with_defaults
from driftproof.outputs import MeanProbability
from driftproof.selection import Selection
from driftproof.validation import check_keywords

__all__ = ["stamp"]


@check_keywords
def stamp(
    model: nn.Module, *, lr: float | None = None, capacity: int = 64, entropy_share: float | None = None,
    num_views: int = 15, augment: Augment = strong_view, rho: float = 0.05, period: int | None = None,
    select: Selection | None = None, **options: Unpack[MethodOptions],
) -> Adapter:  # fmt: skip
    """The mean prediction over views, and sharpness-aware steps on a balanced bank of reliable images.

    An image enters the bank as `memories.RBM` says. The loss is Σ softmax(−H)_i H_i over the bank, with gradients
    through the weights too. The answer is the log of the mean probabilities before the step, novelty their entropy.

    Open choices taken: the published loss is 64 / n times as large for n images in the bank; the published cosine
    climbs again where ours starts anew; all norms train, where the authors leave out the last stage of a ResNet.

    Args:
        model: The trained model.
        lr: Learning rate at the start of each period; None is 0.1, 0.05 or 0.01 for about 10, 100 or 1,000 classes.
        capacity: How many images the bank holds.
        entropy_share: α, the largest entropy of an image in the bank over ln C; None as in `memories.RBM`.
        num_views: How many views are averaged besides the batch itself; each costs a pass.
        augment: The view, whatever the number of classes.
        rho: ρ, the length of the perturbation.
        period: T, steps until the learning rate reaches zero; None is 150, and 750 for about 1,000 classes.
        select: Which images of the bank to learn from; None is all of them.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> stamp(model, num_views=3)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Yu et al., "STAMP: Outlier-Aware Test-Time Adaptation with Stable Memory Replay", ECCV 2024.
    """
    lr = by_classes(model, 0.1, 0.05, 0.01) if lr is None else lr
    schedule = cosine_restarts(int(by_classes(model, 150, 150, 750)) if period is None else period)
    options = with_defaults(
        options, memory=RBM(capacity, entropy_share=entropy_share), gradient=SharpnessAware(rho), lr_schedule=schedule,
        optimizer=torch.optim.SGD, output=MeanProbability(num_views, augment), novelty="answer_entropy",
    )  # fmt: skip
    return build_adapter(model, loss=SelfWeightedEntropy(), lr=lr, select=select, **options)
