"""What adaptation costs: memory counted on paper and measured on the device, and time, fairly compared."""

from driftproof.analyses.memory import FORMULAS, SCENE_FORMULAS, Components, Formula, components, method_memory
from driftproof.analyses.timing import Timing, peak_memory, synchroniser, time_steps

__all__ = [
    "FORMULAS",
    "SCENE_FORMULAS",
    "Components",
    "Formula",
    "Timing",
    "components",
    "method_memory",
    "peak_memory",
    "synchroniser",
    "time_steps",
]
