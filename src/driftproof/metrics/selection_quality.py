"""Precision and recall of a selection."""

import torch
from torch import Tensor

from driftproof.metrics.ratio import Ratio, make_ratio
from driftproof.metrics.shapes import check_same_shape

__all__ = ["SelectionQuality"]


class SelectionQuality:
    """Quality of a selection over batches: are the selected samples the correctly predicted ones?

    An unknown sample always counts as wrong. The masks must come from the same step: the prediction before the update,
    and the selection based on it.

    Args:
        device: Device of the batches.

    Attributes:
        counts: (6,) int64: selected, rejected, correct, known, selected and correct, selected and known samples.

    Examples:
        >>> quality = SelectionQuality()
        >>> yes, no = True, False
        >>> quality.update(torch.tensor([yes, yes, no]), torch.tensor([yes, no, no]), torch.tensor([yes, yes, no]))
        >>> quality.compute()["precision"], quality.compute()["npv"]
        (0.5, 1.0)
    """

    def __init__(self, *, device: torch.device | str | None = None) -> None:
        self.counts = torch.zeros(6, dtype=torch.int64, device=device)

    def update(self, selected: Tensor, correct: Tensor, known: Tensor, counted: Tensor | None = None) -> None:
        """Count a batch of boolean masks, (N,) or (N, H, W).

        Args:
            selected: Samples the step learned from, such as `adapter.last.selected`.
            correct: Samples whose prediction equals the label.
            known: Samples of known classes.
            counted: Samples to count, such as labeled pixels; None for all.
        """
        check_same_shape(selected=selected, correct=correct, known=known)
        correct = correct & known
        masks = torch.stack((selected, ~selected, correct, known, selected & correct, selected & known))
        if counted is not None:
            check_same_shape(selected=selected, counted=counted)
            masks = masks & counted
        self.counts = self.counts + masks.flatten(1).sum(dim=1)

    def compute(self) -> dict[str, float]:
        """Return ratios in [0, 1].

        Returns:
            `precision`: share of correct samples among the selected; `recall`: selected among the correct; `npv`
            (negative predictive value): wrong among the rejected; `rejected`: rejected among all; `selected_known`:
            selected among the known; `selected_unknown`: selected among the unknown.
        """
        return {name: ratio.value for name, ratio in self.compute_ratios().items()}

    def compute_ratios(self) -> dict[str, Ratio]:
        """Return what `compute` returns, with the number of samples that each ratio is over."""
        selected, rejected, correct, known, selected_correct, selected_known = self.counts.tolist()
        total = selected + rejected
        return {
            "precision": make_ratio(selected_correct, selected),
            "recall": make_ratio(selected_correct, correct),
            "npv": make_ratio(rejected - (correct - selected_correct), rejected),
            "rejected": make_ratio(rejected, total),
            "selected_known": make_ratio(selected_known, known),
            "selected_unknown": make_ratio(selected - selected_known, total - known),
        }

    def reset(self) -> None:
        """Clear the counts."""
        self.counts = torch.zeros_like(self.counts)
