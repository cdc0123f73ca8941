"""Novelty scores. **Larger is more novel**, for every score.

Functions compute a score from logits or features. Components compute it from a step, of the frozen or the adapted
network, and have names: `novelty="energy"`, `novelty="adapted_msp"`. Logits are (N, C) or (N, C, H, W); scores are (N,)
or (N, H, W).
"""

from driftproof.scores.base import NoveltyScore
from driftproof.scores.by_name import NOVELTY_SCORES, make_novelty
from driftproof.scores.confidence_drop import ConfidenceDrop
from driftproof.scores.detected import Detected
from driftproof.scores.from_features import CenteredCosineEntropy, Cosine, CosineEntropy
from driftproof.scores.from_logits import FromLogits
from driftproof.scores.functions import (
    confidence_difference,
    cosine,
    cosine_entropy,
    energy,
    entropy,
    local_entropy,
    max_logit,
    msp,
)
from driftproof.scores.unfamiliarity import Unfamiliarity

__all__ = [
    "NOVELTY_SCORES",
    "CenteredCosineEntropy",
    "ConfidenceDrop",
    "Cosine",
    "CosineEntropy",
    "Detected",
    "FromLogits",
    "NoveltyScore",
    "Unfamiliarity",
    "confidence_difference",
    "cosine",
    "cosine_entropy",
    "energy",
    "entropy",
    "local_entropy",
    "make_novelty",
    "max_logit",
    "msp",
]
