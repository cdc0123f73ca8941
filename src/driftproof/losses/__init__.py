"""Losses: one number per sample (pixel), never reduced, (N,) or (N, H, W)."""

from driftproof.losses.base import Loss
from driftproof.losses.conjugate import Conjugate, conjugate, conjugate_labels
from driftproof.losses.consistency import Consistency
from driftproof.losses.entropy import Entropy
from driftproof.losses.follow_teacher import FollowTeacher
from driftproof.losses.gce import GCE, gce
from driftproof.losses.self_weighted import SelfWeightedEntropy

__all__ = [
    "GCE",
    "Conjugate",
    "Consistency",
    "Entropy",
    "FollowTeacher",
    "Loss",
    "SelfWeightedEntropy",
    "conjugate",
    "conjugate_labels",
    "gce",
]
