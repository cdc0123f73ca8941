"""What adaptation costs, in memory and time, and which way single samples pull it."""

from driftproof.analyses.gradients import GradientAgreement, SampleGradients
from driftproof.analyses.memory import FORMULAS, SCENE_FORMULAS, Components, Formula, components, method_memory
from driftproof.analyses.timing import Timing, peak_memory, synchronizer, time_steps

__all__ = [
    "FORMULAS",
    "SCENE_FORMULAS",
    "Components",
    "Formula",
    "GradientAgreement",
    "SampleGradients",
    "Timing",
    "components",
    "method_memory",
    "peak_memory",
    "synchronizer",
    "time_steps",
]
