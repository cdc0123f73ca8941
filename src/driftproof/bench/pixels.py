"""What is measured on label maps: overlap, and how novelty goes with being wrong or unknown."""

import math

import torch
from torch import Tensor

from driftproof.data.scenes import VOID
from driftproof.metrics import BinnedScores, ConfusionMatrix
from driftproof.record import Record
from driftproof.scores import msp
from driftproof.streams import Batch

__all__ = ["IOU_CURVE", "Overlap", "Pixels"]

_CHECKPOINTS = 20
IOU_CURVE = tuple(f"mean_iou@{100 * point // _CHECKPOINTS:02}" for point in range(1, _CHECKPOINTS + 1))
"""What is noted at so many points of a domain: the overlap so far."""


class Overlap:
    """`mean_iou`: mean intersection over union in percent, over known pixels.

    `iou/03` is that of one class. `mean_iou@05` to `mean_iou@100` is the mean over what had come by when so many
    percent of the domain's batches had: twenty points of a curve.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._confusion: ConfusionMatrix | None = None
        self._passed: list[Tensor] = []

    def update(self, logits: Tensor, batch: Batch, record: Record) -> None:
        """Take in a batch, without waiting for the device."""
        if self._confusion is None:
            self._confusion = ConfusionMatrix(logits.shape[1], ignore=VOID, device=self._device)
        self._confusion.add(logits.argmax(dim=1), batch.labels.masked_fill(~batch.known, VOID))
        self._passed.append(self._confusion.counts)

    def compute(self) -> dict[str, float]:
        """In percent; NaN for what was neither there nor predicted."""
        assert self._confusion is not None  # no domain is empty
        classes, total = self._confusion.classes, len(self._passed)
        by_class = {f"iou/{index:02}": 100 * value for index, value in enumerate(self._confusion.iou().tolist())}
        places = [math.ceil(total * point / len(IOU_CURVE)) - 1 for point in range(1, len(IOU_CURVE) + 1)]
        passed = torch.stack([self._passed[place] for place in places]).cpu()
        curve = {name: _mean_iou(counts, classes) for name, counts in zip(IOU_CURVE, passed, strict=True)}
        return {"mean_iou": 100 * self._confusion.mean_iou()} | by_class | curve


def _mean_iou(counts: Tensor, classes: int) -> float:
    confusion = ConfusionMatrix(classes, ignore=VOID)
    confusion.counts = counts
    return 100 * confusion.mean_iou()


class Pixels:
    """How well novelty, and being rejected, tell pixels that are right from those that are wrong or unknown.

    `novelty/wrong/auroc` and `novelty/wrong/fpr` (FPR@TPR95), in percent like all of these, compare right pixels with
    known ones that are wrong; `novelty/unknown/…` with unknown ones; `novelty/both/…` with both. `msp/…` is the same
    for the plainest of scores, one less the largest probability. Scores are told apart by their leading 16 bits, see
    `BinnedScores`: billions of pixels cannot be sorted.

    `rejection/precision` is the share of wrong or unknown pixels among the rejected, beside `rejection/chance`, their
    share among all; `rejection/recall` is that of the rejected among the wrong or unknown, and `rejection/recall_wrong`
    and `rejection/recall_unknown` among each. A method that learns from nothing rejects nothing either, and has none of
    these. Void pixels are left out everywhere.
    """

    _RIGHT, _WRONG, _UNKNOWN = range(3)

    def __init__(self, device: torch.device) -> None:
        self._scores = {name: BinnedScores(3, device=device) for name in ("novelty", "msp")}
        self._rejected = torch.zeros(2, 3, dtype=torch.int64, device=device)

    def update(self, logits: Tensor, batch: Batch, record: Record) -> None:
        """Take in a batch, without waiting for the device."""
        right = logits.argmax(dim=1) == batch.labels
        groups = torch.where(right, self._RIGHT, self._WRONG)
        groups = groups.masked_fill(~batch.known, self._UNKNOWN)
        if batch.labelled is not None:
            groups = groups.masked_fill(~batch.labelled, -1)
        self._scores["novelty"].add(-record.novelty, groups)
        self._scores["msp"].add(-msp(logits), groups)
        if record.objective is None:
            return
        masks = torch.stack([groups == group for group in range(3)]).flatten(1)
        rejected = masks & ~record.selected.flatten()
        self._rejected = self._rejected + torch.stack([rejected.sum(dim=1), masks.sum(dim=1)])

    def compute(self) -> dict[str, float]:
        """In percent; NaN where there is nothing to compare."""
        against = {"wrong": (self._WRONG,), "unknown": (self._UNKNOWN,), "both": (self._WRONG, self._UNKNOWN)}
        found = {}
        for score, familiarity in self._scores.items():
            for name, others in against.items():
                found[f"{score}/{name}/auroc"] = 100 * familiarity.auroc(self._RIGHT, *others)
                found[f"{score}/{name}/fpr"] = 100 * familiarity.fpr_at_tpr(self._RIGHT, *others)
        (right, wrong, unknown), (all_right, all_wrong, all_unknown) = self._rejected.tolist()
        return found | {
            "rejection/precision": _share(wrong + unknown, right + wrong + unknown),
            "rejection/chance": _share(all_wrong + all_unknown, all_right + all_wrong + all_unknown),
            "rejection/recall": _share(wrong + unknown, all_wrong + all_unknown),
            "rejection/recall_wrong": _share(wrong, all_wrong),
            "rejection/recall_unknown": _share(unknown, all_unknown),
        }


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else math.nan
