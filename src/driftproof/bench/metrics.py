"""Metrics of a stream: accumulated on the device, read once per domain."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from driftproof.bench.health_log import health_columns
from driftproof.bench.histograms import Histograms
from driftproof.bench.pixels import IoU, PixelScores
from driftproof.bench.spec import Spec
from driftproof.bench.store import Row
from driftproof.health import Health
from driftproof.metrics import ErrorRate, OpenSetQuality, Ratio, SelectionQuality
from driftproof.record import LazyOutcome, Outcome, Record
from driftproof.streams import StreamBatch
from driftproof.validation import check_choice

__all__ = ["MEASURES", "METRICS", "Metric", "MetricCollection", "MetricValue"]

MetricValue = float | Ratio | list[int]
"""A number, a number with the samples it is over, or the counts of a histogram."""


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

    def compute(self) -> dict[str, Ratio]:
        return {"error": self._errors.compute_ratio()}


class _Selection:
    """Share of selected samples, and precision and recall of the selection.

    For `crowd` it is the selection by the confidence difference, whatever the method itself selects. That is read from
    the novelty, so the spec has to set `novelty="confidence_difference"`.
    """

    def __init__(self, device: torch.device, crowd: bool = False) -> None:
        self._counts, self._crowd = SelectionQuality(device=device), crowd

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        correct = (_predict(logits) == batch.labels) & batch.known
        selected = record.novelty <= 0 if self._crowd else record.selected
        self._counts.update(selected, correct, batch.known, batch.labeled)

    def compute(self) -> dict[str, Ratio]:
        prefix = "crowd/" if self._crowd else ""
        return {f"{prefix}{name}": value for name, value in self._counts.compute_ratios().items()}


class _OpenSet:
    """Ranking of known against unknown images, OSCR, H-score and calibration; label maps are left to `PixelScores`.

    By `protocols`, correctly classified images are ranked against unknown ones, also counting misclassified images as
    negatives, by the confidence difference, which the spec has to name as `novelty`. Every visit of a domain is ranked
    separately, and tables show the mean over domains.
    """

    def __init__(self, device: torch.device, protocols: bool = False) -> None:
        self._protocols = protocols
        self._quality: OpenSetQuality | None = None

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        if batch.labels.ndim == 1:
            self._quality = self._quality or OpenSetQuality()
            self._quality.update(logits, batch.labels, batch.known, record.novelty, record.quarantined)

    def compute(self) -> dict[str, Ratio]:
        if self._quality is None:
            return {}
        if not self._protocols:
            return self._quality.compute()
        found = self._quality.compute_protocols()
        return {name.replace("novelty/", "confidence_difference/"): value for name, value in found.items()}


METRICS: dict[str, Callable[[torch.device], Metric]] = {
    "error": _Error,
    "selection": _Selection,
    "open": _OpenSet,
    "crowd": partial(_Selection, crowd=True),
    "scores": partial(_OpenSet, protocols=True),
    "histograms": Histograms,
    "iou": IoU,
    "pixels": PixelScores,
}
"""The metrics by name. On a stream with unknown images `error`, `selection` and `open` are always measured."""

_ON_OPEN_STREAMS = ("error", "selection", "open")

MEASURES: dict[str, str] = {
    "error": "known images that are misclassified, in %",
    "precision": "correct samples among the selected",
    "recall": "selected samples among the correct",
    "npv": "wrong or unknown samples among the rejected",
    "rejected": "rejected samples among all",
    "selected_known": "selected samples among the known: the share of the known that is kept",
    "selected_unknown": "selected samples among the unknown: the share of the unknown that is kept",
    "SCORE/auroc": "known against unknown images, in %; SCORE is novelty (the method's own), msp, max_logit, energy or "
    "entropy (of the answer). Scores of the frozen network need its pass: name one as the option `novelty`",
    "SCORE/fpr": "unknown images accepted where 95 % of the known are, in %",
    "SCORE/aupr": "average precision of finding the unknown images, in %",
    "oscr": "area under the curve of correctly classified known over accepted unknown images, in %",
    "h_score": "harmonic mean of accuracy and novelty/auroc of a domain, in %; tables show the mean over domains",
    "ece": "expected calibration error on known images, 15 bins, in %",
    "health": "0 healthy, 1 drifting, 2 collapsed, after the last batch; its indicators are health/disagreement ...",
    "health/unhealthy": "how often of health/looks the state was not healthy",
    "guard/ACTION": "batches on which a guard took the action",
    "skipped": "batches that changed nothing",
    "quarantined": "images that were kept out, not finite or far outside the stream",
    "seconds": "time of a visit of a domain",
    "step/milliseconds": "time per step, with reading of images and measuring",
    "peak_memory": "peak memory in bytes, of the device, or of the process on a CPU",
    "crowd/MEASURE": "measures of selection for the confidence difference, whatever is selected (metric `crowd`)",
    "SCORE/including/auroc, SCORE/excluding/fpr ...": "correct images against unknown ones, including or excluding "
    "misclassified images (metric `scores`)",
    "histogram/SCORE/KIND": "histograms of confidence and its change: correct, wrong, unknown (metric `histograms`)",
    "mean_iou, iou/CLASS": "intersection over union of known pixels, in % (metric `iou`)",
    "rejection/precision, rejection/recall": "wrong or unknown pixels among the rejected, and the reverse, in % "
    "(metric `pixels`)",
}
"""What rows measure, one line each; words in capitals stand for several names."""


class MetricCollection:
    """All metrics of a run, for one visit of a domain.

    Besides the metrics of the spec, a row holds the health after the last batch (`health`, `health/disagreement`, ...),
    the number of images `quarantined`, and on how many batches guards took each action (`guard/rolled back`). `counts`
    holds the number of samples that each ratio is over.

    Args:
        prefix: What the names of metrics start with.
    """

    def __init__(self, spec: Spec, device: torch.device | str, prefix: str = "") -> None:
        self._prefix = prefix
        names = dict.fromkeys((*spec.measures, *(_ON_OPEN_STREAMS if spec.unknown is not None else ())))
        self._metrics = [METRICS[check_choice("metric", name, METRICS)](torch.device(device)) for name in names]
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
        found = {f"{self._prefix}{name}": each for metric in self._metrics for name, each in metric.compute().items()}
        counts = {name: value.samples for name, value in found.items() if isinstance(value, Ratio)}
        values = {name: value.value if isinstance(value, Ratio) else value for name, value in found.items()}
        row = {name: self._row[name] for name in ("round", "domain", "batches", "samples")}
        row |= {"skipped": skipped, "quarantined": int(self._quarantined)}
        for name, value in values.items():
            row[name] = value if isinstance(value, list) or math.isfinite(value) else None
        row |= health_columns(Health() if self._last is None else self._last.health)
        row |= {f"guard/{action}": count for action, count in self._actions.items()}
        return row | ({"counts": counts} if counts else {})


def _predict(logits: Tensor) -> Tensor:
    """Return the predicted classes; -1, which is always wrong, for an image without an answer."""
    return logits.argmax(dim=1).masked_fill(logits.isnan().any(dim=1), -1)
