"""T3A: adjust the classifier's templates to the stream, move no parameter."""

from typing import Literal

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, AdapterOptions
from driftproof.outputs import AdjustedTemplates
from driftproof.scopes import nothing
from driftproof.statistics import Source, Statistics
from driftproof.validation import check_keywords

__all__ = ["t3a"]


@check_keywords
def t3a(
    model: nn.Module,
    *,
    capacity: int | None = None,
    statistics: Statistics | Literal["auto"] | None = None,
    **options: Unpack[AdapterOptions],
) -> Adapter:
    """Test-time template adjuster: a class is what its most certain features look like.

    The classifier's rows start a set of features for each class. Every batch adds its own, and each class keeps those
    of lowest entropy. The answer is the product with the normalized sum of each set; its scale is that of the features.

    Open choices taken: K follows the number of classes, 100 for few and 20 for 100 or more, the best published ones.
    There is no K that keeps all features: the bank has one size.

    Args:
        model: The trained model; its classifier has to be linear.
        capacity: K, features to hold per class; None is 100 below 100 classes, else 20.
        statistics: What batch norm uses; None is the statistics of training.
        **options: Keywords of `Adapter`.

    Examples:
        >>> import driftproof as dp
        >>> from torch import nn, rand
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.t3a(model)(rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Iwasawa and Matsuo, "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization",
        NeurIPS 2021.
    """
    chosen: AdapterOptions = {"output": AdjustedTemplates(capacity), **options}
    return Adapter(model, scope=nothing(), statistics=statistics or Source(), **chosen)
