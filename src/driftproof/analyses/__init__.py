"""Analyses: memory and time of adaptation, and gradients of single samples."""

from driftproof.analyses.costs import measure_costs
from driftproof.analyses.gradients import GradientCosine, SampleGradients
from driftproof.analyses.memory import FORMULAS, SCENE_FORMULAS, Formula, MemoryCounts, count_memory, method_memory
from driftproof.analyses.timing import Timing, peak_memory, synchronizer, time_steps, time_trials

__all__ = [
    "FORMULAS",
    "SCENE_FORMULAS",
    "Formula",
    "GradientCosine",
    "MemoryCounts",
    "SampleGradients",
    "Timing",
    "count_memory",
    "measure_costs",
    "method_memory",
    "peak_memory",
    "synchronizer",
    "time_steps",
    "time_trials",
]
