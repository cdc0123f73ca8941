"""What happened to one batch."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

__all__ = ["LazyOutcome", "Outcome", "Record", "reason"]


def reason(*, sound: bool, useful: bool, images: bool, logits: bool, loss: bool) -> str | None:
    """Why a batch changed nothing, or None.

    Args:
        sound: Whether every number of the step was finite.
        useful: Whether there was anything to learn.
        images: Whether the images were finite.
        logits: Whether the model's logits were.
        loss: Whether the loss was.
    """
    if sound:
        return None if useful else "nothing was selected"
    for name, finite in (("images", images), ("model's logits", logits), ("loss", loss)):
        if not finite:
            return f"NaN or Inf in the {name}"
    return "NaN or Inf in the gradient or the updated parameters"


@dataclass(frozen=True)
class Outcome:
    """What came of a batch.

    Attributes:
        stepped: Whether the optimizer took a step.
        skipped: Why the batch changed nothing, or None.
    """

    stepped: bool = False
    skipped: str | None = None


class LazyOutcome:
    """An outcome that is still on the device; the host waits for it when it first asks.

    Args:
        flags: Booleans, in this order: sound, useful, stepped; images, logits and loss finite.
    """

    def __init__(self, flags: Tensor) -> None:
        self._flags = flags

    @cached_property
    def _outcome(self) -> Outcome:
        sound, useful, stepped, images, logits, loss = self._flags.tolist()
        return Outcome(stepped, reason(sound=sound, useful=useful, images=images, logits=logits, loss=loss))

    @property
    def stepped(self) -> bool:
        """Whether the optimizer took a step."""
        return self._outcome.stepped

    @property
    def skipped(self) -> str | None:
        """Why the batch changed nothing, or None."""
        return self._outcome.skipped


@dataclass(frozen=True)
class Record:
    """What happened to one batch, read from `adapter.last`.

    Numbers are fetched from the device when they are asked for, so a loop that does not look pays nothing.

    Attributes:
        selected: Boolean mask of the samples the step learned from, (N,) or (N, H, W). All false where nothing learns.
        novelty: How unfamiliar each sample looks, same shape; larger is more novel.
        objective: The loss as a tensor of no dimension; None where nothing learns.
        outcome: Whether a step was taken, and why not.
    """

    selected: Tensor
    novelty: Tensor
    objective: Tensor | None = None
    outcome: Outcome | LazyOutcome = Outcome()

    @property
    def stepped(self) -> bool:
        """Whether the optimizer took a step (not while gradients are being accumulated)."""
        return self.outcome.stepped

    @property
    def skipped(self) -> str | None:
        """Why the batch changed nothing, or None."""
        return self.outcome.skipped

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
