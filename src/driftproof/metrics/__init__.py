"""Metrics: error rate, calibration, selection quality, open-set measures, intersection over union.

Metrics follow torchmetrics: `update` counts a batch without device synchronization, `compute` reads the result, `reset`
clears it. Their state is the plain tensor `counts`, which can be saved and restored. A ratio with an empty denominator
is NaN.
"""

from driftproof.metrics.binned import BinnedScores
from driftproof.metrics.calibration import calibration_error
from driftproof.metrics.confusion import ConfusionMatrix
from driftproof.metrics.error import ErrorRate
from driftproof.metrics.open_set import OpenSetQuality, h_score, oscr
from driftproof.metrics.ranking import auroc, average_precision, fpr_at_tpr
from driftproof.metrics.ratio import Ratio
from driftproof.metrics.selection_quality import SelectionQuality

__all__ = [
    "BinnedScores",
    "ConfusionMatrix",
    "ErrorRate",
    "OpenSetQuality",
    "Ratio",
    "SelectionQuality",
    "auroc",
    "average_precision",
    "calibration_error",
    "fpr_at_tpr",
    "h_score",
    "oscr",
]
