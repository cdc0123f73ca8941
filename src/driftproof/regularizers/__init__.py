"""Terms of the objective that hold the parameters. Combine regularizers with `+`."""

from driftproof.regularizers.base import Regularizer, Sum
from driftproof.regularizers.fisher import Fisher
from driftproof.regularizers.moving_anchor import MovingAnchor
from driftproof.regularizers.prototypes import NearestPrototypes
from driftproof.regularizers.swr import ShiftAgnosticPenalty

__all__ = ["Fisher", "MovingAnchor", "NearestPrototypes", "Regularizer", "ShiftAgnosticPenalty", "Sum"]
