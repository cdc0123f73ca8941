"""Histograms of confidence and of its change, for correct, wrong and unknown samples."""

import torch
from torch import Tensor

from driftproof.record import Record
from driftproof.streams import StreamBatch

__all__ = ["BINS", "KINDS", "Histograms", "edges"]

BINS = 40

KINDS = ("correct", "wrong", "unknown")
"""Correctly classified known images, misclassified known images, and images of unknown classes."""

_RANGES = {"confidence": (0.0, 1.0), "confidence_difference": (-1.0, 1.0)}


class Histograms:
    """Histograms of the largest probability, max ŷ, and of its change since the source model, ŷ^{c_o} − ỹ^{c_o}.

    A bin includes its lower edge, so a confidence that did not fall lies right of zero. The change is the negative
    novelty, so the spec has to set `novelty="confidence_difference"`. Non-finite scores are left out.
    """

    def __init__(self, device: torch.device) -> None:
        self._counts = {name: torch.zeros(len(KINDS) * BINS, dtype=torch.int64, device=device) for name in _RANGES}

    def update(self, logits: Tensor, batch: StreamBatch, record: Record) -> None:
        """Add a batch, without a device synchronization."""
        right = logits.argmax(dim=1) == batch.labels
        kind = torch.where(batch.known, torch.where(right, 0, 1), 2)
        scores = {"confidence": logits.softmax(dim=1).amax(dim=1), "confidence_difference": -record.novelty}
        for name, score in scores.items():
            finite = score.isfinite()
            low, high = _RANGES[name]
            width = (high - low) / BINS
            # Dividing before shifting keeps a score just below zero in the bin below zero.
            bins = torch.floor(score.where(finite, torch.zeros_like(score)) / width).long() - round(low / width)
            self._counts[name].index_add_(0, BINS * kind + bins.clamp(0, BINS - 1), finite.long())

    def compute(self) -> dict[str, list[int]]:
        """Return the counts per bin as `histogram/confidence/correct` and so on, lowest bin first."""
        return {
            f"histogram/{name}/{kind}": counts
            for name, flat in self._counts.items()
            for kind, counts in zip(KINDS, flat.view(len(KINDS), BINS).tolist(), strict=True)
        }


def edges(name: str) -> list[float]:
    """Return the edges of a score's bins, one more than there are bins."""
    low, high = _RANGES[name]
    return [low + (high - low) * index / BINS for index in range(BINS + 1)]
