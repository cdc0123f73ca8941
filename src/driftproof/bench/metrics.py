"""What is measured while a stream runs: counted on the device, read once per domain."""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from driftproof import scores
from driftproof.bench.histograms import Histograms
from driftproof.bench.pixels import Overlap, Pixels
from driftproof.bench.spec import Spec
from driftproof.bench.store import Row
from driftproof.metrics import Errors, SelectionQuality, auroc, fpr_at_tpr
from driftproof.record import LazyOutcome, Outcome, Record
from driftproof.streams import Batch
from driftproof.validation import check_choice

__all__ = ["METRICS", "MetricValue", "Metric", "MetricCollection"]

MetricValue = float | list[int]
"""A number, or the counts of a histogram."""


class Metric(Protocol):
    """Sees every batch of a domain, then says what it found."""

    def update(self, logits: Tensor, batch: Batch, record: Record) -> None:
        """Take in a batch, without waiting for the device."""

    def compute(self) -> Mapping[str, MetricValue]:
        """The numbers, by name, over everything taken in."""


class _Error:
    """`error`: percent of the known images that were classified wrongly."""

    def __init__(self, device: torch.device) -> None:
        self._errors = Errors(device=device)

    def update(self, logits: Tensor, batch: Batch, record: Record) -> None:
        self._errors.add(logits.argmax(dim=1), batch.labels, batch.known)

    def compute(self) -> dict[str, float]:
        return {"error": self._errors.result()}


class _Selection:
    """Share of samples learned from, and how well being rejected goes with being wrong or unknown."""

    def __init__(self, device: torch.device) -> None:
        self._counts = SelectionQuality(device=device)

    def update(self, logits: Tensor, batch: Batch, record: Record) -> None:
        correct = (logits.argmax(dim=1) == batch.labels) & batch.known
        self._counts.add(record.selected, correct, batch.known, batch.labelled)

    def compute(self) -> dict[str, float]:
        return self._counts.result()


class _Crowd:
    """What the paper's selection would have rejected and how rightly, whatever the method itself learned from.

    The confidence difference is what the adapter reports as novelty, so its spec has to ask for that.
    """

    def __init__(self, device: torch.device) -> None:
        self._counts = SelectionQuality(device=device)

    def update(self, logits: Tensor, batch: Batch, record: Record) -> None:
        correct = (logits.argmax(dim=1) == batch.labels) & batch.known
        self._counts.add(record.novelty <= 0, correct, batch.known)

    def compute(self) -> dict[str, float]:
        return {f"crowd/{name}": value for name, value in self._counts.result().items()}


class _Scores:
    """AUROC and FPR@TPR95 in percent of four novelty scores, for both of the paper's protocols.

    Positives are known images that were classified rightly. Negatives are unknown ones, and where `including` is said
    also the known images that were classified wrongly. The confidence difference is what the adapter reports as
    novelty, so its spec has to ask for that.

    Open choice taken: every visit of a domain is ranked by itself, and a table shows the mean over the domains.
    """

    _FROM_LOGITS: tuple[Callable[[Tensor], Tensor], ...] = (scores.msp, scores.max_logit, scores.energy)

    def __init__(self, device: torch.device) -> None:
        self._correct: list[Tensor] = []
        self._known: list[Tensor] = []
        self._scores: dict[str, list[Tensor]] = {}

    def update(self, logits: Tensor, batch: Batch, record: Record) -> None:
        self._correct.append((logits.argmax(dim=1) == batch.labels) & batch.known)
        self._known.append(batch.known)
        for score in self._FROM_LOGITS:
            self._scores.setdefault(score.__name__, []).append(score(logits))
        self._scores.setdefault(scores.confidence_difference.__name__, []).append(record.novelty)

    def compute(self) -> dict[str, float]:
        correct, known = torch.cat(self._correct), torch.cat(self._known)
        found = {}
        for name, parts in self._scores.items():
            familiarity = -torch.cat(parts)
            for protocol, negatives in {"including": ~correct, "excluding": ~known}.items():
                pair = familiarity[correct], familiarity[negatives]
                # A network that has left the finite numbers ranks nothing.
                ranked = not familiarity.isnan().any()
                found[f"{name}/{protocol}/auroc"] = 100 * auroc(*pair) if ranked else math.nan
                found[f"{name}/{protocol}/fpr"] = 100 * fpr_at_tpr(*pair) if ranked else math.nan
        return found


METRICS: dict[str, Callable[[torch.device], Metric]] = {
    "error": _Error,
    "selection": _Selection,
    "crowd": _Crowd,
    "scores": _Scores,
    "histograms": Histograms,
    "iou": Overlap,
    "pixels": Pixels,
}


class MetricCollection:
    """One visit of a domain.

    Args:
        spec: The cell, which says what is measured.
        device: Where the batches are.
    """

    def __init__(self, spec: Spec, device: torch.device | str) -> None:
        names = [check_choice("metric", name, METRICS) for name in spec.measures]
        self._metrics = [METRICS[name](torch.device(device)) for name in names]
        self._row: Row = {"batches": 0, "samples": 0}
        self._outcomes: list[Outcome | LazyOutcome] = []

    def update(self, logits: Tensor, batch: Batch, record: Record) -> None:
        """Take in a batch: the adapter's answer, what arrived, and what the adapter did."""
        for metric in self._metrics:
            metric.update(logits, batch, record)
        self._row |= {"round": batch.round, "domain": batch.domain}
        self._row["batches"] += 1
        self._row["samples"] += len(batch.labels)
        self._outcomes.append(record.outcome)

    def compute(self) -> Row:
        """Everything that was measured; what does not apply is None, as JSON has no NaN."""
        # Asking waits for the device, so it is left to the end.
        skipped = sum(outcome.skipped is not None for outcome in self._outcomes)
        found = {name: value for metric in self._metrics for name, value in metric.compute().items()}
        finite = {name: value if _is_known(value) else None for name, value in found.items()}
        return (
            {name: self._row[name] for name in ("round", "domain", "batches", "samples")}
            | {"skipped": skipped}
            | finite
        )


def _is_known(value: MetricValue) -> bool:
    return isinstance(value, list) or math.isfinite(value)
