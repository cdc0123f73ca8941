"""What happens to the parameters once the optimizer has moved them."""

from driftproof.after.adaptive_reset import AdaptiveReset
from driftproof.after.base import After, Resettable
from driftproof.after.momentum_filter import MomentumFilter
from driftproof.after.reset import ResetEvery, ResetWhen, selected_entropy
from driftproof.after.towards_source import PullToSource, StochasticRestore

__all__ = [
    "AdaptiveReset",
    "After",
    "MomentumFilter",
    "PullToSource",
    "ResetEvery",
    "ResetWhen",
    "Resettable",
    "StochasticRestore",
    "selected_entropy",
]
