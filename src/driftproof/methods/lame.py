"""LAME: let neighbors agree, move no parameter."""

from typing import Literal

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, AdapterOptions
from driftproof.outputs import LaplacianAdjusted
from driftproof.scopes import nothing
from driftproof.statistics import Source, Statistics
from driftproof.validation import check_keywords

__all__ = ["lame"]


@check_keywords
def lame(
    model: nn.Module,
    *,
    neighbors: int = 5,
    iterations: int = 100,
    statistics: Statistics | Literal["auto"] | None = None,
    **options: Unpack[AdapterOptions],
) -> Adapter:
    """Laplacian adjusted maximum-likelihood estimation: samples that look alike get the same class.

    Nothing learns and nothing is remembered. It helps where neighbors in a batch share their class, as in streams
    ordered by class, and does harm where they do not. Memory grows with the square of the batch.

    Open choices taken: a fixed number of iterations (the authors stop at a relative change of the energy of 1e-8); the
    width of the affinity is the mean distance to the 5th neighbor, itself included, as in the authors' code.

    Args:
        model: The trained model.
        neighbors: k; the distance to the k-th neighbor sets the width of the affinity.
        iterations: How often the assignment is updated.
        statistics: What batch norm uses; None is the statistics of training.
        **options: Keywords of `Adapter`.

    Examples:
        >>> import driftproof as dp
        >>> from torch import nn, rand
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.lame(model)(rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Boudiaf et al., "Parameter-free Online Test-time Adaptation", CVPR 2022.
    """
    chosen: AdapterOptions = {"output": LaplacianAdjusted(neighbors, iterations), **options}
    return Adapter(model, scope=nothing(), statistics=statistics or Source(), **chosen)
