"""What holds the parameters, or pulls on them: a term added to the loss, or an act after the step.

Combine regularizers with `+`.
"""

from driftproof.regularizers.base import Regularizer, Sum
from driftproof.regularizers.fisher import Fisher
from driftproof.regularizers.prototypes import NearestPrototypes
from driftproof.regularizers.restore import StochasticRestore
from driftproof.regularizers.swr import ShiftAgnosticPenalty

__all__ = ["Fisher", "NearestPrototypes", "Regularizer", "ShiftAgnosticPenalty", "StochasticRestore", "Sum"]
