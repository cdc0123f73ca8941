"""Whether the samples that were learned from deserved it."""

import torch
from torch import Tensor

from driftproof.metrics.shapes import expect_same_shape

__all__ = ["SelectionQuality"]


class SelectionQuality:
    """Compares, over batches, what was selected with what was predicted correctly.

    An unknown sample counts as wrong, whatever was predicted. The masks are those of the step itself: the prediction
    before the update, and the selection it led to.

    Args:
        device: Where the batches are.

    Attributes:
        counts: (6,) int64: selected, rejected, correct, known, selected and correct, selected and known samples.

    Examples:
        >>> quality = SelectionQuality()
        >>> yes, no = True, False
        >>> quality.add(torch.tensor([yes, yes, no]), torch.tensor([yes, no, no]), torch.tensor([yes, yes, no]))
        >>> quality.result()["precision"], quality.result()["npv"]
        (0.5, 1.0)
    """

    def __init__(self, *, device: torch.device | str | None = None) -> None:
        self.counts = torch.zeros(6, dtype=torch.int64, device=device)

    def add(self, selected: Tensor, correct: Tensor, known: Tensor, counted: Tensor | None = None) -> None:
        """Count a batch of boolean masks, (N,) or (N, H, W).

        Args:
            selected: The samples the step learned from; `adapter.last.selected` fits.
            correct: Where the prediction equals the label.
            known: The samples that show what the model was taught.
            counted: The samples that count at all, such as labelled pixels; None for all.
        """
        expect_same_shape(selected=selected, correct=correct, known=known)
        correct = correct & known
        masks = torch.stack((selected, ~selected, correct, known, selected & correct, selected & known))
        if counted is not None:
            expect_same_shape(selected=selected, counted=counted)
            masks = masks & counted
        self.counts = self.counts + masks.flatten(1).sum(dim=1)

    def result(self) -> dict[str, float]:
        """Shares in [0, 1].

        Returns:
            `precision`: correct among the selected; `recall`: selected among the correct; `npv`: wrong among the
            rejected; `rejected`: rejected among all; `selected_known`: selected among the known; `selected_unknown`:
            selected among the unknown.
        """
        selected, rejected, correct, known, right, familiar = self.counts.tolist()
        total = selected + rejected
        return {
            "precision": _share(right, selected),
            "recall": _share(right, correct),
            "npv": _share(rejected - (correct - right), rejected),
            "rejected": _share(rejected, total),
            "selected_known": _share(familiar, known),
            "selected_unknown": _share(selected - familiar, total - known),
        }

    def reset(self) -> None:
        """Start again from nothing."""
        self.counts = torch.zeros_like(self.counts)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
