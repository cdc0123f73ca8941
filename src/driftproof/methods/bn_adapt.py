"""BN Adapt: normalize with the statistics of the test batch."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, AdapterOptions
from driftproof.scopes import nothing
from driftproof.statistics import Batch
from driftproof.validation import check_keywords

__all__ = ["bn_adapt"]


@check_keywords
def bn_adapt(model: nn.Module, **options: Unpack[AdapterOptions]) -> Adapter:
    """Batch statistics, no step, no memory between batches.

    The mixture of source and batch statistics that some call by this name is `statistics.Blend`.

    Examples:
        >>> import driftproof as dp
        >>> from torch import nn, rand
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.bn_adapt(model)(rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Nado et al., "Evaluating Prediction-Time Batch Normalization for Robustness under Covariate Shift", 2020.
        Schneider et al., "Improving robustness against common corruptions by covariate shift adaptation", NeurIPS 2020.
    """
    return Adapter(model, scope=nothing(), statistics=Batch(), **options)
