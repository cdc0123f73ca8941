"""What happened to one batch."""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Record"]


@dataclass(frozen=True)
class Record:
    """What happened to one batch, read from `adapter.last`.

    Numbers are fetched from the device when they are asked for, so a loop that does not look pays nothing.

    Attributes:
        selected: Boolean mask of the samples the step learned from, (N,) or (N, H, W). All false where nothing learns.
        novelty: How unfamiliar each sample looks, same shape; larger is more novel.
        objective: The loss as a tensor of no dimension; None where nothing learns.
        stepped: Whether the optimiser took a step (not while gradients are being accumulated).
        skipped: Why the batch changed nothing, or None.
    """

    selected: Tensor
    novelty: Tensor
    objective: Tensor | None = None
    stepped: bool = False
    skipped: str | None = None

    @property
    def seen(self) -> int:
        """How many samples (pixels, in segmentation) the batch held."""
        return self.selected.numel()

    @property
    def kept(self) -> float:
        """The share of samples the step learned from."""
        return float(self.selected.float().mean())

    @property
    def loss(self) -> float | None:
        """The loss of the step, or None where nothing learns."""
        return None if self.objective is None else float(self.objective)

    def __repr__(self) -> str:
        loss = "none" if self.loss is None else f"{self.loss:.4f}"
        outcome = self.skipped or ("stepped" if self.stepped else "no step")
        return f"Record(seen={self.seen}, kept={self.kept:.3f}, loss={loss}, {outcome})"
