"""Losses: one number per sample (pixel), never reduced, (N,) or (N, H, W). Add losses with `+`."""

from driftproof.losses.base import Loss, Sum
from driftproof.losses.conjugate import Conjugate, conjugate, conjugate_labels
from driftproof.losses.consistency import Consistency
from driftproof.losses.entropy import Entropy
from driftproof.losses.follow_teacher import FollowTeacher
from driftproof.losses.gce import GCE, gce
from driftproof.losses.likelihood_ratio import SoftLikelihoodRatio
from driftproof.losses.opinion import COME, come
from driftproof.losses.self_weighted import SelfWeightedEntropy
from driftproof.losses.view_consistency import ViewConsistency
from driftproof.losses.view_entropy import ViewEntropy

__all__ = [
    "COME",
    "GCE",
    "Conjugate",
    "Consistency",
    "Entropy",
    "FollowTeacher",
    "Loss",
    "SelfWeightedEntropy",
    "SoftLikelihoodRatio",
    "Sum",
    "ViewConsistency",
    "ViewEntropy",
    "come",
    "conjugate",
    "conjugate_labels",
    "gce",
]
