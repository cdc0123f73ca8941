"""TTN: interpolate between source and test statistics, channel by channel."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, AdapterOptions
from driftproof.scopes import nothing
from driftproof.statistics import TTN
from driftproof.validation import check_keywords

__all__ = ["ttn"]


@check_keywords
def ttn(model: nn.Module, *, statistics: TTN | None = None, **options: Unpack[AdapterOptions]) -> Adapter:
    """TTN statistics, no step; needs `prepare`.

    To take steps on top of them, pass `statistics=driftproof.statistics.TTN()` to another method.

    Args:
        model: The trained model.
        statistics: The rule with settings of your own; None is the default, without online statistics.
        **options: Keywords of `Adapter`.

    Examples:
        >>> import driftproof as dp
        >>> from torch import arange, nn, rand
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> source = [(rand(8, 3, 4, 4), arange(8) % 5)]
        >>> adapter = dp.ttn(model, statistics=dp.statistics.TTN(prior_batches=2, epochs=1)).prepare(source)
        >>> adapter(rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Lim et al., "TTN: A Domain-Shift Aware Batch Normalization in Test-Time Adaptation", ICLR 2023.
    """
    return Adapter(model, scope=nothing(), statistics=statistics or TTN(), **options)
