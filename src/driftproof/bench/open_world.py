"""Measures of an open stream: how well known images are classified and unknown ones told apart."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from driftproof import scores
from driftproof.bench.ratio import Ratio
from driftproof.metrics import calibration_error, h_score, oscr
from driftproof.metrics.ranking import (
    auroc_from_counts,
    average_precision_from_counts,
    counts_by_score,
    fpr_from_counts,
)
from driftproof.predictions import log_probabilities
from driftproof.record import Record
from driftproof.streams import StreamBatch

__all__ = ["ANSWER_SCORES", "OpenWorld", "predict"]

ANSWER_SCORES: tuple[Callable[[Tensor], Tensor], ...] = (scores.msp, scores.max_logit, scores.energy, scores.entropy)
"""Scores of the adapter's answer. They need no frozen network and no further pass."""


class OpenWorld:
    """Ranks known images against unknown ones by the method's novelty and by scores of its answer, in percent.

    `novelty/auroc`, `novelty/fpr` (FPR@TPR95: the share of unknown images accepted where 95 % of the known are) and
    `novelty/aupr` (average precision of finding the unknown); the same for `msp`, `max_logit`, `energy` and `entropy`,
    computed from the answer. A score of the frozen network needs its forward pass, so it is measured only where the
    method's `novelty` is one: the confidence difference by default, or what the option `novelty` of the spec names,
    such as `cosine`. For a method that learns nothing, the answer is the frozen network's.

    `oscr` and `h_score` join the novelty with the accuracy on known images. `ece` is the calibration error of the
    answer on known images, in 15 bins. Quarantined images have no score: they count as misclassified, and are neither
    ranked nor in `ece`. Label maps are left to `PixelScores`.

    Args:
        device: Device of the batches.
    """

    def __init__(self, device: torch.device) -> None:
        self._batches: dict[str, list[Tensor]] = {}

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        """Add a batch, without a device synchronization."""
        if batch.labels.ndim > 1:
            return
        tensors = {
            "known": batch.known,
            "correct": (predict(logits) == batch.labels) & batch.known,
            "answered": ~record.quarantined,
            "confidence": log_probabilities(logits).amax(dim=1).exp(),
            "novelty": record.novelty,
            **{score.__name__: score(logits) for score in ANSWER_SCORES},
        }
        for name, tensor in tensors.items():
            self._batches.setdefault(name, []).append(tensor)

    def compute(self) -> dict[str, Ratio]:
        """Return the measures of a domain; NaN where a score is NaN, or nothing is known or unknown."""
        if not self._batches:
            return {}
        joined = {name: torch.cat(tensors) for name, tensors in self._batches.items()}
        known, correct, answered, confidence = (
            joined.pop(name) for name in ("known", "correct", "answered", "confidence")
        )
        ranked = {name: score[answered] for name, score in joined.items()}
        found = {
            f"{name}/{measure}": Ratio(100 * value, int(answered.sum()))
            for name, score in ranked.items()
            for measure, value in _rank(score, known[answered]).items()
        }
        accuracy = 100 * int(correct.sum()) / max(int(known.sum()), 1)
        # Without a score a known image is not accepted, and an unknown one is not ranked.
        kept = answered | known
        familiarity = (-joined["novelty"]).masked_fill(~answered, -math.inf)[kept]
        has_nan = bool(ranked["novelty"].isnan().any())
        area = math.nan if has_nan else oscr(familiarity, correct[kept], known[kept])
        counted = known & answered
        error = calibration_error(confidence[counted], correct[counted])
        return found | {
            "oscr": Ratio(100 * area, int(kept.sum())),
            "h_score": Ratio(h_score(accuracy, found["novelty/auroc"].value), int(kept.sum())),
            "ece": Ratio(100 * error, int(counted.sum())),
        }


def _rank(novelty: Tensor, known: Tensor) -> dict[str, float]:
    """Return AUROC and FPR with the known as positives, and the average precision of the unknown."""
    if novelty.isnan().any():
        return dict.fromkeys(("auroc", "fpr", "aupr"), math.nan)
    familiar, novel = counts_by_score(-novelty[known], -novelty[~known])
    return {
        "auroc": auroc_from_counts(familiar, novel),
        "fpr": fpr_from_counts(familiar, novel),
        "aupr": average_precision_from_counts(novel.flip(0), familiar.flip(0)),
    }


def predict(logits: Tensor) -> Tensor:
    """Return the predicted classes; -1, which is always wrong, for an image without an answer."""
    return logits.argmax(dim=1).masked_fill(logits.isnan().any(dim=1), -1)
