"""ROID: learn from certain and diverse samples, and stay near the source model."""

from typing import Literal

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.after import PullToSource
from driftproof.augment import Augment, geometric_jitter
from driftproof.losses import Loss, SoftLikelihoodRatio, ViewConsistency
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.outputs import PriorCorrected
from driftproof.selection import CertainAndDiverse, Selection
from driftproof.validation import check_keywords

__all__ = ["roid"]


@check_keywords
def roid(
    model: nn.Module, *, lr: float = 1e-3, consistency: bool = True, pull: float = 0.01,
    prior: Literal["probabilities", "logits"] | None = None, augment: Augment = geometric_jitter,
    loss: Loss | None = None, select: Selection | None = None, **options: Unpack[MethodOptions],
) -> Adapter:  # fmt: skip
    """Soft likelihood ratio and consistency with a view, weighted by certainty and diversity, near the source.

    The loss is divided by the size of the batch. A given `select` replaces the weights.

    Open choices taken: the prior correction is off, as it is for classes in balance. For a model of pixels pass
    `augment=dp.augment.photometric`, which moves none.

    Args:
        model: The trained model.
        lr: Learning rate.
        consistency: Whether to add the agreement with a random view of the kept images.
        pull: Share of the way back to the source after each step.
        prior: Corrects the output for the classes' shares in the batch, see `outputs.PriorCorrected`; None does not.
        augment: Makes the view.
        loss: Replaces the soft likelihood ratio.
        select: Replaces the weights by certainty and diversity.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch, driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.roid(model)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Marsden et al., "Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior
        Correction", WACV 2024.
    """
    options.setdefault("average_over", "batch")
    if prior is not None:
        options.setdefault("output", PriorCorrected(prior))
    ratio, select, own = loss or SoftLikelihoodRatio(), select or CertainAndDiverse(), [PullToSource(pull)]
    loss = ratio + ViewConsistency(augment) if consistency else ratio
    return build_adapter(model, loss=loss, lr=lr, select=select, own_after=own, **options)
