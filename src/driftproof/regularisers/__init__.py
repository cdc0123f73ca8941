"""What holds the parameters, or pulls on them: a term added to the loss, or an act after the step.

Combine regularisers with `+`.
"""

from driftproof.regularisers.base import Regulariser, Sum
from driftproof.regularisers.drift import WeightedDrift
from driftproof.regularisers.fisher import Fisher
from driftproof.regularisers.prototypes import NearestPrototypes
from driftproof.regularisers.restore import StochasticRestore

__all__ = ["Fisher", "NearestPrototypes", "Regulariser", "StochasticRestore", "Sum", "WeightedDrift"]
