"""Norm-EMA: normalize with a moving average of the stream's statistics."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, AdapterOptions
from driftproof.scopes import nothing
from driftproof.statistics import Running
from driftproof.validation import check_keywords

__all__ = ["norm_ema"]


@check_keywords
def norm_ema(model: nn.Module, *, momentum: float = 0.1, **options: Unpack[AdapterOptions]) -> Adapter:
    """Running statistics that start at the source and take in every batch before it is answered; no step.

    Open choices taken: one pass, in which each layer sees what the running statistics of the layers before it make of
    the batch; the code it is known from collects them in a first pass with batch statistics, unbiased variances
    included, and answers with a second.

    NOTE keeps such statistics too, but its instance-aware batch norm needs a source model trained with it.

    Args:
        model: The trained model.
        momentum: Share of a new batch in the running statistics.
        **options: Keywords of `Adapter`.

    Examples:
        >>> import driftproof as dp
        >>> from torch import nn, rand
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.norm_ema(model)(rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Döbler et al., "Robust Mean Teacher for Continual and Gradual Test-Time Adaptation", CVPR 2023, whose code has
        it as a baseline.
    """
    return Adapter(model, scope=nothing(), statistics=Running(momentum), **options)
