"""Measures of streams with unknown images: how well they are told apart from known ones."""

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
from driftproof.record import Record
from driftproof.streams import StreamBatch

__all__ = ["OpenWorld", "ScoreProtocols", "predict"]

_ANSWER_SCORES: tuple[Callable[[Tensor], Tensor], ...] = (scores.msp, scores.max_logit, scores.energy, scores.entropy)
"""Scores of the adapter's answer. They need no frozen network and no further pass."""

_MAX_PENDING = 2**22
"""Number of logits that are kept before they are reduced to scores: 16 MiB."""


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
        self._pending: list[tuple[Tensor, ...]] = []
        self._scored: list[dict[str, Tensor]] = []

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        """Add a batch, without a device synchronization."""
        if batch.labels.ndim == 1:
            self._pending.append((logits, batch.labels, batch.known, record.quarantined, record.novelty))
        if sum(pending[0].numel() for pending in self._pending) > _MAX_PENDING:
            self._score_pending()

    def _score_pending(self) -> None:
        """Reduce the answers that were kept to scores; many batches at once, because each is small."""
        logits, labels, known, quarantined, novelty = map(torch.cat, zip(*self._pending, strict=True))
        facts = {"known": known, "correct": (predict(logits) == labels) & known, "answered": ~quarantined}
        scored = {score.__name__: score(logits) for score in _ANSWER_SCORES}
        self._scored.append({**facts, "novelty": novelty, **scored})
        self._pending = []

    def _join(self) -> dict[str, Tensor]:
        if self._pending:
            self._score_pending()
        return {name: torch.cat([chunk[name] for chunk in self._scored]) for name in self._scored[0]}

    def compute(self) -> dict[str, Ratio]:
        """Return the measures of a domain; NaN where a score is NaN, or nothing is known or unknown."""
        if not self._pending and not self._scored:
            return {}
        joined = self._join()
        known, correct, answered = (joined.pop(name) for name in ("known", "correct", "answered"))
        found = {
            f"{name}/{measure}": Ratio(100 * value, int(answered.sum()))
            for name, novelty in joined.items()
            for measure, value in _rank(novelty[answered], known[answered], ~known[answered]).items()
        }
        accuracy = 100 * int(correct.sum()) / max(int(known.sum()), 1)
        # A known image without a score is not accepted; an unknown one is not ranked.
        kept, counted = known | answered, known & answered
        familiarity = (-joined["novelty"]).masked_fill(~answered, -math.inf)[kept]
        area = math.nan if familiarity.isnan().any() else oscr(familiarity, correct[kept], known[kept])
        error = calibration_error(1 - joined["msp"][counted], correct[counted])
        return found | {
            "oscr": Ratio(100 * area, int(kept.sum())),
            "h_score": Ratio(h_score(accuracy, found["novelty/auroc"].value), int(kept.sum())),
            "ece": Ratio(100 * error, int(counted.sum())),
        }


class ScoreProtocols(OpenWorld):
    """AUROC and FPR@TPR95 of four scores in percent, with correctly classified images as positives.

    Negatives are unknown images (`excluding`), or these and misclassified known images (`including`). The confidence
    difference is read from the novelty, so the spec has to set `novelty="confidence_difference"`. Every visit of a
    domain is ranked separately, and tables show the mean over domains.
    """

    def compute(self) -> dict[str, Ratio]:
        """Return the measures of a domain; NaN where a score is NaN, or there is nothing to compare."""
        joined = self._join()
        correct, joined["confidence_difference"] = joined["correct"], joined["novelty"]
        return {
            f"{name}/{protocol}/{measure}": Ratio(100 * _rank(joined[name], correct, others)[measure], len(correct))
            for name in ("msp", "max_logit", "energy", "confidence_difference")
            for protocol, others in {"including": ~correct, "excluding": ~joined["known"]}.items()
            for measure in ("auroc", "fpr")
        }


def _rank(novelty: Tensor, positives: Tensor, negatives: Tensor) -> dict[str, float]:
    """Return AUROC and FPR of accepting the positives, and the average precision of finding the negatives."""
    if novelty.isnan().any():
        return dict.fromkeys(("auroc", "fpr", "aupr"), math.nan)
    familiar, novel = counts_by_score(-novelty[positives], -novelty[negatives])
    return {
        "auroc": auroc_from_counts(familiar, novel),
        "fpr": fpr_from_counts(familiar, novel),
        "aupr": average_precision_from_counts(novel.flip(0), familiar.flip(0)),
    }


def predict(logits: Tensor) -> Tensor:
    """Return the predicted classes; -1, which is always wrong, for an image without an answer."""
    return logits.argmax(dim=1).masked_fill(logits.isnan().any(dim=1), -1)
