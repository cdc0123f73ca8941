"""Selection by the method's detector."""

from torch import Tensor

from driftproof.components import Step
from driftproof.selection.base import Selection

__all__ = ["Known"]


class Known(Selection):
    """Learn from samples that the detector takes for known; needs `detector=`."""

    def weights(self, step: Step) -> Tensor:
        """One for each known sample."""
        return step.detection.known.to(step.weights.dtype)

    def valid_mask(self, step: Step) -> Tensor:
        """Known samples: the others do not count in the mean prediction either."""
        return step.detection.known
