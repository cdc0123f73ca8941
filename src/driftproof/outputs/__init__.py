"""What an adapter returns for a batch, also when nothing learns."""

from driftproof.outputs.base import AfterUpdate, BeforeUpdate, Ensemble, Output, Teacher
from driftproof.outputs.prior_corrected import PriorCorrected
from driftproof.outputs.teacher_ensemble import MultiScale, RandomViews, TeacherEnsemble

__all__ = [
    "AfterUpdate",
    "BeforeUpdate",
    "Ensemble",
    "MultiScale",
    "Output",
    "PriorCorrected",
    "RandomViews",
    "Teacher",
    "TeacherEnsemble",
]
