"""Metrics of segmentation: IoU, and how novelty and rejection relate to wrong and unknown pixels."""

import math

import torch
from torch import Tensor

from driftproof.data.scenes import VOID
from driftproof.metrics import BinnedScores, ConfusionMatrix, Ratio
from driftproof.metrics.ratio import make_ratio
from driftproof.record import Record
from driftproof.scores import msp
from driftproof.streams import StreamBatch

__all__ = ["IoU", "PixelScores"]

_CHECKPOINTS = 20


class IoU:
    """Intersection over union in percent, over known pixels.

    `mean_iou` is the mean over classes, `iou/03` that of class 3. `mean_iou@05` to `mean_iou@100` is the running mean
    IoU after so many percent of the domain's batches: twenty points of a curve.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._confusion: ConfusionMatrix | None = None
        self._counts: list[Tensor] = []

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        """Add a batch, without a device synchronization."""
        if self._confusion is None:
            self._confusion = ConfusionMatrix(logits.shape[1], ignore_index=VOID, device=self._device)
        unanswered = logits[:, 0].isnan()  # quarantined frames; no class stands for them, so they are left out
        self._confusion.update(logits.argmax(dim=1), batch.labels.masked_fill(~batch.known | unanswered, VOID))
        self._counts.append(self._confusion.counts)

    def compute(self) -> dict[str, float]:
        """Return the values in percent; NaN for classes neither present nor predicted."""
        assert self._confusion is not None  # no domain is empty
        found = {"mean_iou": 100 * self._confusion.mean_iou()}
        found |= {f"iou/{index:02}": 100 * value for index, value in enumerate(self._confusion.iou().tolist())}
        indices = [math.ceil(len(self._counts) * point / _CHECKPOINTS) - 1 for point in range(1, _CHECKPOINTS + 1)]
        checkpoints = torch.stack([self._counts[index] for index in indices]).cpu()
        for point, counts in enumerate(checkpoints, start=1):
            until = ConfusionMatrix(self._confusion.classes, ignore_index=VOID)
            until.counts = counts
            found[f"mean_iou@{100 * point // _CHECKPOINTS:02}"] = 100 * until.mean_iou()
        return found


class PixelScores:
    """How well novelty and rejection separate right pixels from wrong and unknown ones, in percent.

    `novelty/wrong/auroc` and `novelty/wrong/fpr` (FPR@TPR95) compare right pixels with wrong known ones,
    `novelty/unknown/…` with unknown ones, `novelty/both/…` with both. `msp/…` is the same for one minus the largest
    probability. Scores are compared by their leading 16 bits, see `BinnedScores`, because billions of pixels cannot be
    sorted.

    `rejection/precision` is the share of wrong or unknown pixels among the rejected; `rejection/chance` is their share
    among all. `rejection/recall` is the share of rejected pixels among the wrong or unknown, `rejection/recall_wrong`
    and `rejection/recall_unknown` among each. These are missing for methods that do not learn. Void pixels are ignored.
    """

    _RIGHT, _WRONG, _UNKNOWN = range(3)

    def __init__(self, device: torch.device) -> None:
        self._scores = {name: BinnedScores(3, device=device) for name in ("novelty", "msp")}
        self._rejected = torch.zeros(2, 3, dtype=torch.int64, device=device)

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        """Add a batch, without a device synchronization."""
        right = logits.argmax(dim=1) == batch.labels
        groups = torch.where(right, self._RIGHT, self._WRONG).masked_fill(~batch.known, self._UNKNOWN)
        if batch.labeled is not None:
            groups = groups.masked_fill(~batch.labeled, -1)
        self._scores["novelty"].update(-record.novelty, groups)
        self._scores["msp"].update(-msp(logits), groups)
        if record.objective is None:
            return
        masks = torch.stack([groups == group for group in range(3)]).flatten(1)
        rejected = masks & ~record.selected.flatten()
        self._rejected = self._rejected + torch.stack([rejected.sum(dim=1), masks.sum(dim=1)])

    def compute(self) -> dict[str, float | Ratio]:
        """Return the values in percent; NaN where there is nothing to compare."""
        against = {"wrong": (self._WRONG,), "unknown": (self._UNKNOWN,), "both": (self._WRONG, self._UNKNOWN)}
        found: dict[str, float | Ratio] = {}
        for score, familiarity in self._scores.items():
            for name, others in against.items():
                found[f"{score}/{name}/auroc"] = 100 * familiarity.auroc(self._RIGHT, *others)
                found[f"{score}/{name}/fpr"] = 100 * familiarity.fpr_at_tpr(self._RIGHT, *others)
        (right, wrong, unknown), totals = self._rejected.tolist()
        bad, all_bad = wrong + unknown, totals[self._WRONG] + totals[self._UNKNOWN]
        return found | {
            "rejection/precision": make_ratio(bad, right + bad, scale=100),
            "rejection/chance": make_ratio(all_bad, sum(totals), scale=100),
            "rejection/recall": make_ratio(bad, all_bad, scale=100),
            "rejection/recall_wrong": make_ratio(wrong, totals[self._WRONG], scale=100),
            "rejection/recall_unknown": make_ratio(unknown, totals[self._UNKNOWN], scale=100),
        }
