"""What a run is judged by: error, selection quality, ranking of the unknown, overlap of label maps.

Counters gather over batches without a word to the host and are read once, at the end; their `counts` are plain tensors
that can be kept and put back. A share that nothing was counted for is NaN.
"""

from driftproof.metrics.binned import BinnedScores
from driftproof.metrics.confusion import ConfusionMatrix
from driftproof.metrics.error import Errors
from driftproof.metrics.ranking import auroc, fpr_at_tpr
from driftproof.metrics.selection_quality import SelectionQuality

__all__ = ["BinnedScores", "ConfusionMatrix", "Errors", "SelectionQuality", "auroc", "fpr_at_tpr"]
