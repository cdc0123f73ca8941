"""How confidence, and its change, are spread over right, wrong and unknown predictions."""

import torch
from torch import Tensor

from driftproof.record import Record
from driftproof.streams import Batch

__all__ = ["BINS", "KINDS", "Histograms", "edges"]

BINS = 40

KINDS = ("correct", "wrong", "unknown")
"""Known images that were classified rightly, known ones that were not, and images of no known class."""

_RANGES = {"confidence": (0.0, 1.0), "confidence_difference": (-1.0, 1.0)}


class Histograms:
    """Counts of the largest probability, max ŷ, and of its change since the start, ŷ^{c_o} − ỹ^{c_o}.

    A bin holds its lower edge: a confidence that did not fall lies right of zero. The change is what the adapter
    reports as novelty, so its spec has to ask for that. Scores that are not finite are left out.

    Args:
        device: Where the batches are.

    Examples:
        >>> from driftproof.record import Record
        >>> images, labels = torch.zeros(2, 3, 1, 1), torch.tensor([0, 1])
        >>> batch = Batch(images, labels, "fog", round=1, known=torch.tensor([True, True]))
        >>> histograms = Histograms(torch.device("cpu"))
        >>> logits = torch.tensor([[9.0, 0.0], [9.0, 0.0]])
        >>> histograms.update(logits, batch, Record(torch.ones(2, dtype=torch.bool), torch.tensor([0.0, 0.3])))
        >>> histograms.compute()["histogram/confidence/wrong"][-1]
        1
    """

    def __init__(self, device: torch.device) -> None:
        self._counts = {name: torch.zeros(len(KINDS) * BINS, dtype=torch.int64, device=device) for name in _RANGES}

    def update(self, logits: Tensor, batch: Batch, record: Record) -> None:
        """Count a batch."""
        right = logits.argmax(dim=1) == batch.labels
        kind = torch.where(batch.known, torch.where(right, 0, 1), 2)
        scores = {"confidence": logits.softmax(dim=1).amax(dim=1), "confidence_difference": -record.novelty}
        for name, score in scores.items():
            counted = score.isfinite()
            places = BINS * kind + _bin(score.where(counted, torch.zeros_like(score)), *_RANGES[name])
            self._counts[name].index_add_(0, places, counted.long())

    def compute(self) -> dict[str, list[int]]:
        """`histogram/confidence/correct` and so on: the counts of each bin, from the lowest."""
        return {
            f"histogram/{name}/{kind}": counts
            for name, flat in self._counts.items()
            for kind, counts in zip(KINDS, flat.view(len(KINDS), BINS).tolist(), strict=True)
        }


def edges(name: str) -> list[float]:
    """Where the bins of a score begin, and where the last one ends.

    Examples:
        >>> edges("confidence")[:3]
        [0.0, 0.025, 0.05]
    """
    low, high = _RANGES[name]
    return [low + (high - low) * place / BINS for place in range(BINS + 1)]


def _bin(scores: Tensor, low: float, high: float) -> Tensor:
    width = (high - low) / BINS
    # Divided before it is shifted, so that a score just below zero stays below it.
    places = torch.floor(scores / width).long() - round(low / width)
    return places.clamp(0, BINS - 1)
