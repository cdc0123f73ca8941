"""The base class of novelty scores, and which network a score is of."""

import math
from typing import Literal

from torch import Tensor

from driftproof.components import Component, Step
from driftproof.validation import check_choice

__all__ = ["NoveltyScore", "Of", "check_of", "is_adapted"]

Of = Literal["frozen", "adapted"]


class NoveltyScore(Component):
    """How unfamiliar each sample of a step is.

    A score of the frozen network costs its forward pass unless the method runs it anyway, or learns nothing.

    Attributes:
        bounds: Smallest and largest value the score can have.

    Examples:
        The smallest new score.

        >>> class SmallMargin(NoveltyScore):
        ...     def forward(self, step):
        ...         first, second = step.probabilities.topk(2, dim=1).values.unbind(dim=1)
        ...         return second - first
    """

    bounds: tuple[float, float] = (-math.inf, math.inf)

    def forward(self, step: Step) -> Tensor:
        """Return the score of each sample, (N,) or (N, H, W); gradients are off."""
        raise NotImplementedError


def is_adapted(of: Of, step: Step) -> bool:
    """Whether a score reads the adapting network: if it is that one's, or if the networks never differ."""
    return of == "adapted" or step.always_at_source


def check_of(of: Of) -> Of:
    """Refuse a network that does not exist."""
    check_choice("network", of, ("frozen", "adapted"))
    return of
