"""STAMP: certainty-weighted entropy on a bank of images that many views and the frozen network agree on."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.augment import Augment, strong_view
from driftproof.components import Step
from driftproof.gradients import SharpnessAware
from driftproof.losses import SelfWeightedEntropy
from driftproof.memories import RBM
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.outputs import MeanProbability
from driftproof.scopes import norm_affine
from driftproof.scores import entropy
from driftproof.selection import Selection
from driftproof.validation import check_keywords

__all__ = ["stamp"]


@check_keywords
def stamp(
    model: nn.Module,
    *,
    lr: float | None = None,
    capacity: int = 64,
    entropy_share: float | None = None,
    num_views: int = 15,
    augment: Augment = strong_view,
    rho: float = 0.05,
    period: int | None = None,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """The mean prediction over views, and sharpness-aware steps on a balanced bank of reliable images.

    An image enters the bank if its mean prediction is certain and the frozen network predicts its class. The loss is
    Σ softmax(−H)_i H_i over the bank; gradients flow through the weights too, as published. The answer is the log of
    the mean probabilities, from before the step, and the novelty score their entropy.

    Open choices taken: the published loss is 64 / n times as large for n images in the bank, which is corrected here;
    the cosine schedule starts anew after each period, where the published one climbs again; the view is `strong_view`
    for any number of classes; all norms train, where the authors leave out the last stage of a ResNet.

    Args:
        model: The trained model.
        lr: Learning rate at the start of each period; None is 0.1 for up to 31 classes, 0.05 for up to 316, and 0.01
            for more, as the authors have it for 10, 100 and 1,000. Classes are counted at the last linear layer.
        capacity: How many images the bank holds.
        entropy_share: α, the largest entropy of an image in the bank over ln C; None as in `memories.RBM`.
        num_views: How many views are averaged besides the batch itself; each costs a pass.
        augment: The view.
        rho: ρ, the length of the perturbation.
        period: T, steps until the learning rate reaches zero; None is 150, and 750 for more than 316 classes.
        select: Which images of the bank to learn from; None is all of them.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.stamp(model, num_views=3)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Yu et al., "STAMP: Outlier-Aware Test-Time Adaptation with Stable Memory Replay", ECCV 2024.
    """
    classes = _count_classes(model)
    lr = (0.1 if classes < 32 else 0.05 if classes < 317 else 0.01) if lr is None else lr
    period = (150 if classes < 317 else 750) if period is None else period
    defaults: MethodOptions = {
        "memory": RBM(capacity, entropy_share=entropy_share),
        "gradient": SharpnessAware(rho),
        "optimizer": torch.optim.SGD,
        "lr_schedule": partial(cosine, period=period),
        "output": MeanProbability(num_views, augment),
        "novelty": _output_entropy,
    }
    chosen: MethodOptions = {**defaults, **options}
    return build_adapter(model, loss=SelfWeightedEntropy(), default_scope=norm_affine(), lr=lr, select=select, **chosen)


def cosine(steps: Tensor, *, period: int) -> Tensor:
    """A factor that falls from one to zero in `period` steps, and starts anew."""
    return 0.5 + 0.5 * torch.cos(math.pi / period * (steps % period))


def _count_classes(model: nn.Module) -> int:
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    return layers[-1].out_features if layers else 0


def _output_entropy(step: Step) -> Tensor:
    return entropy(step.output)
