"""Norm-EMA: normalize with a moving average of the stream's statistics."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, AdapterOptions
from driftproof.scopes import nothing
from driftproof.statistics import Blend
from driftproof.validation import check_keywords

__all__ = ["norm_ema"]


@check_keywords
def norm_ema(model: nn.Module, *, momentum: float = 0.1, **options: Unpack[AdapterOptions]) -> Adapter:
    """Statistics that start at those of training and move a little with every batch; no step.

    Every batch moves the running mean and variance by the share `momentum`, and is normalized with the result. So small
    batches work, and the stream is forgotten only slowly.

    Open choices taken: one pass. The usual code runs a first pass with batch statistics to move the averages and a
    second one to predict, so its deeper layers average over inputs that are normalized in another way. Variances are
    not corrected for the size of the batch. NOTE keeps such statistics too, but its instance-aware batch norm needs a
    source model that was trained with it.

    Args:
        model: The trained model.
        momentum: Share of the batch in the running statistics.
        **options: Keywords of `Adapter`.

    Examples:
        >>> import driftproof as dp
        >>> from torch import nn, rand
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.norm_ema(model)(rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Marsden et al., "Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior
        Correction", WACV 2024 (as a baseline).
    """
    return Adapter(model, scope=nothing(), statistics=Blend(1.0, momentum=momentum, start="source"), **options)
