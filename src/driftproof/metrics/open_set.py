"""How well known samples are classified and unknown ones told apart."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from driftproof import scores
from driftproof.errors import StateError
from driftproof.metrics.calibration import calibration_error
from driftproof.metrics.ranking import (
    auroc,
    auroc_from_counts,
    average_precision_from_counts,
    counts_by_score,
    fpr_from_counts,
)
from driftproof.metrics.ratio import Ratio
from driftproof.metrics.shapes import check_same_shape

__all__ = ["OpenSetQuality", "h_score", "oscr"]

_ANSWER_SCORES: tuple[Callable[[Tensor], Tensor], ...] = (scores.msp, scores.max_logit, scores.energy, scores.entropy)
_MAX_PENDING = 2**22
"""Number of logits that are kept before they are reduced to scores: 16 MiB."""


def oscr(familiarity: Tensor, correct: Tensor, known: Tensor) -> float:
    """Return the area under the open-set classification rate curve, in [0, 1].

    The curve plots the share of known samples that are accepted and correctly classified over the share of unknown
    samples that are accepted, for every threshold of acceptance. Its area is the accuracy times the probability that a
    correctly classified sample is more familiar than an unknown one.

    Args:
        familiarity: Score of each sample, (N,); larger is accepted first. Negate novelty scores.
        correct: Boolean, whether each prediction is correct, (N,); ignored where unknown.
        known: Boolean mask of the known samples, (N,).

    Examples:
        >>> known = torch.tensor([True, True, False])
        >>> oscr(torch.tensor([0.9, 0.2, 0.5]), torch.tensor([True, True, False]), known)
        0.5

    Reference:
        Dhamija, Günther, Boult: Reducing Network Agnostophobia. NeurIPS 2018.
    """
    correct = correct & known
    if not known.any() or known.all():
        return math.nan
    if not correct.any():
        return 0.0
    accuracy = int(correct.sum()) / int(known.sum())
    return accuracy * auroc(familiarity[correct], familiarity[~known])


def h_score(accuracy: float, auroc: float) -> float:
    """Return the harmonic mean of accuracy and AUROC, both in [0, 1] or both in percent.

    Over several domains, take the mean of their H-scores: it is not the H-score of the means.

    Examples:
        >>> h_score(0.5, 1.0)
        0.6666666666666666
    """
    total = accuracy + auroc
    return 2 * accuracy * auroc / total if total else total


class OpenSetQuality:
    """Open-set measures over batches, by the method's novelty and by scores of its answer, in percent.

    `update` keeps what it is given on the device and synchronizes nothing; scores are computed for many batches at
    once. The scores of the answer, `msp`, `max_logit`, `energy` and `entropy`, need no frozen network and no further
    pass. A score of the frozen network needs its forward pass: pass it as the novelty, with `novelty="cosine"` of the
    adapter. For a method that learns nothing, the answer is the frozen network's.

    Examples:
        >>> quality = OpenSetQuality()
        >>> logits, labels = torch.tensor([[4.0, 0.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, -1])
        >>> quality.update(logits, labels, labels >= 0, torch.tensor([0.1, 0.2, 0.7]))
        >>> measures = quality.compute()
        >>> measures["novelty/auroc"], measures["oscr"].value, measures["h_score"].value
        (Ratio(value=100.0, samples=3), 100.0, 100.0)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all samples."""
        self._pending: list[tuple[Tensor, ...]] = []
        self._scored: list[dict[str, Tensor]] = []

    def update(
        self, logits: Tensor, labels: Tensor, known: Tensor, novelty: Tensor, quarantined: Tensor | None = None
    ) -> None:
        """Add a batch.

        Args:
            logits: The adapter's answer, (N, C).
            labels: True classes, (N,); any value where unknown.
            known: Boolean mask of the known samples, (N,).
            novelty: `adapter.last.novelty`, (N,).
            quarantined: `adapter.last.quarantined`, (N,); None if there are none. These samples have no score: they
                count as misclassified, and are neither ranked nor in `ece`.
        """
        quarantined = torch.zeros_like(known) if quarantined is None else quarantined
        check_same_shape(labels=labels, known=known, novelty=novelty, quarantined=quarantined, answers=logits[:, 0])
        self._pending.append((logits, labels, known, novelty, quarantined))
        if sum(pending[0].numel() for pending in self._pending) > _MAX_PENDING:
            self._score_pending()

    def compute(self) -> dict[str, Ratio]:
        """Return the measures; NaN where a score is NaN, or nothing is known or unknown.

        Returns:
            `novelty/auroc`: known against unknown; `novelty/fpr`: unknown accepted where 95 % of the known are;
            `novelty/aupr`: average precision of finding the unknown; the same for the scores of the answer. `oscr` and
            `h_score`, by the novelty; `ece`: calibration error on known samples, in 15 bins.
        """
        joined = self._join()
        known, correct, answered = (joined.pop(name) for name in ("known", "correct", "answered"))
        found = {
            f"{name}/{measure}": Ratio(100 * value, int(answered.sum()))
            for name, novelty in joined.items()
            for measure, value in _rank(novelty[answered], known[answered], ~known[answered]).items()
        }
        accuracy = 100 * int(correct.sum()) / max(int(known.sum()), 1)
        # A known sample without a score is not accepted; an unknown one is not ranked.
        kept, counted = known | answered, known & answered
        familiarity = (-joined["novelty"]).masked_fill(~answered, -math.inf)[kept]
        area = math.nan if familiarity.isnan().any() else oscr(familiarity, correct[kept], known[kept])
        error = calibration_error(1 - joined["msp"][counted], correct[counted])
        return found | {
            "oscr": Ratio(100 * area, int(kept.sum())),
            "h_score": Ratio(h_score(accuracy, found["novelty/auroc"].value), int(kept.sum())),
            "ece": Ratio(100 * error, int(counted.sum())),
        }

    def compute_protocols(self) -> dict[str, Ratio]:
        """Return AUROC and FPR with correctly classified samples as positives, as `msp/including/auroc` and so on.

        Negatives are unknown samples (`excluding`), or these and misclassified ones (`including`).
        """
        joined = self._join()
        correct = joined["correct"]
        return {
            f"{name}/{protocol}/{measure}": Ratio(100 * _rank(joined[name], correct, others)[measure], len(correct))
            for name in ("msp", "max_logit", "energy", "novelty")
            for protocol, others in {"including": ~correct, "excluding": ~joined["known"]}.items()
            for measure in ("auroc", "fpr")
        }

    def _score_pending(self) -> None:
        logits, labels, known, novelty, quarantined = map(torch.cat, zip(*self._pending, strict=True))
        wrong = (logits.argmax(dim=1) != labels) | logits.isnan().any(dim=1)
        facts = {"known": known, "correct": known & ~wrong, "answered": ~quarantined, "novelty": novelty}
        self._scored.append(facts | {score.__name__: score(logits) for score in _ANSWER_SCORES})
        self._pending = []

    def _join(self) -> dict[str, Tensor]:
        if self._pending:
            self._score_pending()
        if not self._scored:
            raise StateError("Expected batches to measure, but got none. Call `update` first.")
        return {name: torch.cat([chunk[name] for chunk in self._scored]) for name in self._scored[0]}


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
