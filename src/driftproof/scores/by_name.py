"""Novelty scores by name."""

from collections.abc import Callable
from functools import partial

from driftproof.scores.base import NoveltyScore
from driftproof.scores.confidence_drop import ConfidenceDrop
from driftproof.scores.detected import Detected
from driftproof.scores.from_features import CenteredCosineEntropy, Cosine, CosineEntropy
from driftproof.scores.from_logits import LOGIT_SCORES, FromLogits
from driftproof.validation import check_choice

__all__ = ["NOVELTY_SCORES", "make_novelty"]

NOVELTY_SCORES: dict[str, Callable[[], NoveltyScore]] = {
    "confidence_difference": ConfidenceDrop,
    **{name: partial(FromLogits, name) for name in LOGIT_SCORES},
    "cosine": Cosine,
    "cosine_entropy": CosineEntropy,
    "centered_cosine_entropy": CenteredCosineEntropy,
    **{f"adapted_{name}": partial(FromLogits, name, of="adapted") for name in LOGIT_SCORES},
    "adapted_cosine": partial(Cosine, of="adapted"),
    "adapted_cosine_entropy": partial(CosineEntropy, of="adapted"),
    **{f"answer_{name}": partial(FromLogits, name, of="answer") for name in LOGIT_SCORES},
    "detector": Detected,
}
"""The scores by name; those without a prefix are the frozen network's."""


def make_novelty(name: str) -> NoveltyScore:
    """Return the score of this name.

    Examples:
        >>> make_novelty("adapted_energy")
        FromLogits(score='energy', of='adapted')
    """
    return NOVELTY_SCORES[check_choice("novelty", name, NOVELTY_SCORES)]()
