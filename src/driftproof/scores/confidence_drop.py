"""The confidence difference as a novelty score."""

from torch import Tensor

from driftproof.components import Step
from driftproof.scores.base import NoveltyScore

__all__ = ["ConfidenceDrop"]


class ConfidenceDrop(NoveltyScore):
    """The confidence difference: how much adaptation lowered the confidence in the frozen network's class.

    `ConfidenceDifference()` selects exactly the samples where it is not above 0.
    """

    bounds = (-1.0, 1.0)

    def forward(self, step: Step) -> Tensor:
        """Return the drop; 0 while the networks are equal."""
        return 0 - step.confidence_change  # a negation would give −0
