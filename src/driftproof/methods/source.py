"""Source: the model as it was trained."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, AdapterOptions
from driftproof.scopes import nothing
from driftproof.statistics import Source
from driftproof.validation import check_keywords

__all__ = ["source"]


@check_keywords
def source(model: nn.Module, **options: Unpack[AdapterOptions]) -> Adapter:
    """The unadapted model: statistics of its training, no step.

    Examples:
        >>> import driftproof as dp
        >>> from torch import nn, rand
        >>> adapter = dp.source(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)))
        >>> adapter(rand(2, 3, 2, 2)).shape
        torch.Size([2, 5])
    """
    return Adapter(model, scope=nothing(), statistics=Source(), **options)
