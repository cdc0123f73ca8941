"""What an adapter returns for a batch, also when nothing learns."""

from driftproof.outputs.base import AfterUpdate, BeforeUpdate, Ensemble, Output, Teacher
from driftproof.outputs.confidence_ensemble import ConfidenceEnsemble
from driftproof.outputs.laplacian import LaplacianAdjusted
from driftproof.outputs.log_mean import LogMean
from driftproof.outputs.mean_probability import MeanProbability
from driftproof.outputs.prior_corrected import PriorCorrected
from driftproof.outputs.teacher_ensemble import MultiScale, RandomViews, TeacherEnsemble
from driftproof.outputs.templates import AdjustedTemplates
from driftproof.outputs.views import AveragedViews, Episodic

__all__ = [
    "AdjustedTemplates",
    "AfterUpdate",
    "AveragedViews",
    "BeforeUpdate",
    "ConfidenceEnsemble",
    "Ensemble",
    "Episodic",
    "LaplacianAdjusted",
    "LogMean",
    "MeanProbability",
    "MultiScale",
    "Output",
    "PriorCorrected",
    "RandomViews",
    "Teacher",
    "TeacherEnsemble",
]
