"""Metrics of a stream: accumulated on the device, read once per domain."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from driftproof import scores
from driftproof.bench.health_log import health_columns
from driftproof.bench.histograms import Histograms
from driftproof.bench.pixels import IoU, PixelScores
from driftproof.bench.spec import Spec
from driftproof.bench.store import Row
from driftproof.health import Health
from driftproof.metrics import ErrorRate, SelectionQuality, auroc, fpr_at_tpr
from driftproof.record import LazyOutcome, Outcome, Record
from driftproof.streams import StreamBatch
from driftproof.validation import check_choice

__all__ = ["METRICS", "Metric", "MetricCollection", "MetricValue"]

MetricValue = float | list[int]
"""A number, or the counts of a histogram."""


class Metric(Protocol):
    """Accumulates over the batches of one domain."""

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        """Add a batch, without a device synchronization."""

    def compute(self) -> Mapping[str, MetricValue]:
        """Return the values by row key, over all batches."""


class _Error:
    """`error`: percentage of known images that are misclassified."""

    def __init__(self, device: torch.device) -> None:
        self._errors = ErrorRate(device=device)

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        self._errors.update(_predict(logits), batch.labels, batch.known)

    def compute(self) -> dict[str, float]:
        return {"error": self._errors.compute()}


class _Selection:
    """Share of selected samples, and precision and recall of the selection."""

    def __init__(self, device: torch.device) -> None:
        self._counts = SelectionQuality(device=device)

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        correct = (_predict(logits) == batch.labels) & batch.known
        self._counts.update(record.selected, correct, batch.known, batch.labeled)

    def compute(self) -> dict[str, float]:
        return self._counts.compute()


class _PaperSelection:
    """Quality of the paper's selection, computed alongside whatever the method itself selects.

    Reads the confidence difference from the novelty, so the spec has to set `novelty="confidence_difference"`.
    """

    def __init__(self, device: torch.device) -> None:
        self._counts = SelectionQuality(device=device)

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        correct = (_predict(logits) == batch.labels) & batch.known
        self._counts.update(record.novelty <= 0, correct, batch.known)

    def compute(self) -> dict[str, float]:
        return {f"crowd/{name}": value for name, value in self._counts.compute().items()}


class _Scores:
    """AUROC and FPR@TPR95 of four novelty scores in percent, for both of the paper's protocols.

    Positives are correctly classified known images. Negatives are unknown images (`excluding`), or these and
    misclassified known images (`including`). The confidence difference is read from the novelty, so the spec has to set
    `novelty="confidence_difference"`.

    Our reading where the paper is silent: every visit of a domain is ranked separately, and tables show the mean over
    domains.
    """

    _FROM_LOGITS: tuple[Callable[[Tensor], Tensor], ...] = (scores.msp, scores.max_logit, scores.energy)

    def __init__(self, device: torch.device) -> None:
        self._correct: list[Tensor] = []
        self._known: list[Tensor] = []
        self._scores: dict[str, list[Tensor]] = {}

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        self._correct.append((_predict(logits) == batch.labels) & batch.known)
        self._known.append(batch.known)
        for score in self._FROM_LOGITS:
            self._scores.setdefault(score.__name__, []).append(score(logits))
        self._scores.setdefault(scores.confidence_difference.__name__, []).append(record.novelty)

    def compute(self) -> dict[str, float]:
        correct, known = torch.cat(self._correct), torch.cat(self._known)
        found = {}
        for name, batches in self._scores.items():
            familiarity = -torch.cat(batches)
            for protocol, negatives in {"including": ~correct, "excluding": ~known}.items():
                pair = familiarity[correct], familiarity[negatives]
                rankable = not familiarity.isnan().any()
                found[f"{name}/{protocol}/auroc"] = 100 * auroc(*pair) if rankable else math.nan
                found[f"{name}/{protocol}/fpr"] = 100 * fpr_at_tpr(*pair) if rankable else math.nan
        return found


METRICS: dict[str, Callable[[torch.device], Metric]] = {
    "error": _Error,
    "selection": _Selection,
    "crowd": _PaperSelection,
    "scores": _Scores,
    "histograms": Histograms,
    "iou": IoU,
    "pixels": PixelScores,
}


class MetricCollection:
    """All metrics of a run, for one visit of a domain.

    Besides the metrics of the spec, a row holds the health after the last batch (`health`, `health/disagreement`, ...),
    the number of images `quarantined`, and on how many batches guards took each action (`guard/rolled back`).

    Args:
        spec: The run, whose `measures` name the metrics.
        device: Device of the batches.
    """

    def __init__(self, spec: Spec, device: torch.device | str) -> None:
        names = [check_choice("metric", name, METRICS) for name in spec.measures]
        self._metrics = [METRICS[name](torch.device(device)) for name in names]
        self._row: Row = {"batches": 0, "samples": 0}
        self._outcomes: list[Outcome | LazyOutcome] = []
        self._quarantined = torch.zeros((), dtype=torch.long, device=device)
        self._actions: Counter[str] = Counter()
        self._last: Record | None = None

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        """Add a batch: the adapter's output, the batch, and the adapter's record."""
        for metric in self._metrics:
            metric.update(logits, batch, record)
        self._row |= {"round": batch.round, "domain": batch.domain}
        self._row["batches"] += 1
        self._row["samples"] += len(batch.labels)
        self._outcomes.append(record.outcome)
        self._quarantined += record.quarantined.sum()
        self._actions.update(set(record.actions))
        self._last = record

    def compute(self) -> Row:
        """Return the row of this visit; NaN and Inf become None, because JSON has neither."""
        # Reading outcomes and health synchronizes with the device, so it is done once, at the end.
        skipped = sum(outcome.skipped is not None for outcome in self._outcomes)
        found = {name: value for metric in self._metrics for name, value in metric.compute().items()}
        finite = {name: value if _is_finite(value) else None for name, value in found.items()}
        return (
            {name: self._row[name] for name in ("round", "domain", "batches", "samples")}
            | {"skipped": skipped, "quarantined": int(self._quarantined)}
            | finite
            | health_columns(Health() if self._last is None else self._last.health)
            | {f"guard/{action}": count for action, count in self._actions.items()}
        )


def _predict(logits: Tensor) -> Tensor:
    """Return the predicted classes; -1, which is always wrong, for an image without an answer."""
    return logits.argmax(dim=1).masked_fill(logits.isnan().any(dim=1), -1)


def _is_finite(value: MetricValue) -> bool:
    return isinstance(value, list) or math.isfinite(value)
