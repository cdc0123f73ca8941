"""What an adapter returns for a batch, also when nothing learns."""

from driftproof.outputs.base import AfterUpdate, BeforeUpdate, Ensemble, Output, Teacher
from driftproof.outputs.confidence_ensemble import ConfidenceEnsemble
from driftproof.outputs.teacher_ensemble import MultiScale, RandomViews, TeacherEnsemble

__all__ = [
    "AfterUpdate",
    "BeforeUpdate",
    "ConfidenceEnsemble",
    "Ensemble",
    "MultiScale",
    "Output",
    "RandomViews",
    "Teacher",
    "TeacherEnsemble",
]
