"""What the method's detector says, as a novelty score."""

from torch import Tensor

from driftproof.components import Step
from driftproof.scores.base import NoveltyScore

__all__ = ["Detected"]


class Detected(NoveltyScore):
    """What the method's detector says; needs `detector=`."""

    def forward(self, step: Step) -> Tensor:
        """Return the detector's score of each sample or pixel."""
        return step.detection.novelty
