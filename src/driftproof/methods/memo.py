"""MEMO: agree with yourself over views of one image, then forget."""

import torch
from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.augment import Augment, crop_and_flip
from driftproof.losses import ViewEntropy
from driftproof.methods._build import MethodOptions, build_adapter, with_defaults
from driftproof.outputs import Episodic
from driftproof.scopes import everything
from driftproof.selection import Selection
from driftproof.statistics import Blend
from driftproof.validation import check_keywords

__all__ = ["memo"]


@check_keywords
def memo(
    model: nn.Module,
    *,
    lr: float = 0.005,
    views: int = 32,
    augment: Augment = crop_and_flip,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """Marginal entropy minimization with one test point: for streams of single images.

    One step on the entropy of the mean prediction over views of the image, with all parameters; the image is predicted
    after the step, and the parameters return to the source.

    Open choices taken: the views are random crops and mirror images, with which MEMO's begin; its color and shape
    mixtures are left out. A batch of several images takes one step for all of them.

    Args:
        model: The trained model.
        lr: Learning rate; 0.005 on CIFAR, 2.5e-4 on ImageNet.
        views: How many views of an image; 32 on CIFAR, 64 on ImageNet.
        augment: How each is made.
        select: Which images to learn from; None is all of them.
        **options: The keywords all methods share; by default plain SGD, and statistics with a tenth of the batch's.

    Examples:
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.memo(model, views=4)(torch.rand(1, 3, 4, 4)).shape
        torch.Size([1, 5])

    Reference:
        Zhang et al., "MEMO: Test Time Robustness via Adaptation and Augmentation", NeurIPS 2022.
    """
    options = with_defaults(options, statistics=Blend(0.1), optimizer=torch.optim.SGD, output=Episodic())
    loss = ViewEntropy(views, augment)
    return build_adapter(model, loss=loss, default_scope=everything(), lr=lr, select=select, **options)
