"""What happened to one batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from driftproof.health import Health

__all__ = ["DeferredRecord", "LazyOutcome", "Outcome", "Record", "StepResult", "skip_reason"]


_HOLDS = {
    "paused": "a guard has paused it",
    "unshifted": "the images hardly differ from training's",
    "unbalanced": "predictions fall into few classes, or did until now, as with class-ordered images",
    "unconfirmed": "only one extra pass so far speaks for the stream's statistics",
}
"""Why learning is held back, in the order of the flags."""


def skip_reason(
    *, finite: bool, has_signal: bool, images: bool, logits: bool, loss: bool, holds: Sequence[bool] = ()
) -> str | None:
    """Why a batch changed nothing, or None.

    Args:
        finite: Whether every number of the step was finite.
        has_signal: Whether there was anything to learn.
        images: Whether any image was good.
        logits: Whether the model's logits were.
        loss: Whether the loss was.
        holds: Whether a guard holds learning back; then, where the statistics can, whether they do since nothing has
            shifted, since predictions are not balanced, and since a second pass has to confirm the first.
    """
    reasons = [reason for reason, is_so in zip(_HOLDS.values(), holds, strict=False) if is_so]
    if finite and reasons:
        return f"learning is held back: {'; '.join(reasons)}"
    if finite:
        return None if has_signal else "nothing was selected"
    if not images:
        return "NaN or Inf in the images, or values far outside the stream"
    for name, is_finite in (("model's logits", logits), ("loss", loss)):
        if not is_finite:
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
    """An outcome that is fetched from the device on first access.

    Args:
        flags: Booleans, in this order: finite, has_signal, stepped; images, logits and loss finite; paused by a guard.
            Others may follow.
        holds: Why the statistics hold learning back, in the order of `skip_reason`; None where they never do.
    """

    def __init__(self, flags: Tensor, holds: Tensor | None = None) -> None:
        self.flags = flags
        self.holds = holds

    def clone(self) -> "LazyOutcome":
        """Copy the flags, which the next replay of a captured step overwrites."""
        return LazyOutcome(self.flags.clone(), None if self.holds is None else self.holds.clone())

    @cached_property
    def _outcome(self) -> Outcome:
        finite, has_signal, stepped, images, logits, loss, paused, *_ = self.flags.tolist()
        holds = [paused] if self.holds is None else [paused, *self.holds.tolist()]
        checks = {"images": images, "logits": logits, "loss": loss}
        reason = skip_reason(finite=finite, has_signal=has_signal, **checks, holds=holds)
        return Outcome(stepped, reason)

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
    """What happened to one batch, read from `adapter.last` or `adapter.step(images).record`.

    Numbers are fetched from the device on access, so a loop that does not look pays nothing.

    Attributes:
        selected: Boolean mask of the samples the step learned from, (N,) or (N, H, W). All false where nothing learns;
            with a memory, the samples offered to it.
        novelty: How unfamiliar each sample is, same shape; larger is more novel. The default score of a method that
            learns without the frozen network costs a pass of it, when it is first read.
        quarantined: Boolean mask of the images that were kept out, (N,): not finite, or far outside what the stream has
            shown. Their logits and novelty are NaN.
        objective: The loss as a 0-d tensor; None where nothing learns.
        outcome: Whether a step was taken, and why not.
        averages: What `health` is computed from.
        actions: What guards did after this batch, such as "rolled back".
    """

    selected: Tensor
    novelty: Tensor
    quarantined: Tensor
    objective: Tensor | None = None
    outcome: Outcome | LazyOutcome = Outcome()
    averages: Tensor | None = None
    actions: tuple[str, ...] = ()

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

    @cached_property
    def health(self) -> Health:
        """How adaptation goes."""
        return Health() if self.averages is None else Health.from_averages(self.averages.tolist())

    def __repr__(self) -> str:
        loss = "none" if self.loss is None else f"{self.loss:.4f}"
        outcome = self.skipped or ("stepped" if self.stepped else "no step")
        outcome = ", ".join([outcome, self.health.state, *self.actions])
        return f"Record(seen={self.seen}, kept={self.kept:.3f}, loss={loss}, {outcome})"


class DeferredRecord(Record):
    """A record whose novelty needs a pass of the frozen network, which runs when the novelty is first read.

    It keeps the batch until then.

    Args:
        record: What the step found.
        compute: Runs the pass and returns the novelty.
    """

    def __init__(self, record: Record, compute: Callable[[], Tensor]) -> None:
        vars(self).update({name: value for name, value in vars(record).items() if name != "novelty"})
        vars(self)["_compute"] = compute

    @cached_property
    def novelty(self) -> Tensor:
        """How unfamiliar each sample is."""
        novelty: Tensor = vars(self)["_compute"]()
        vars(self)["_compute"] = lambda: novelty  # lets the batch go; another thread may be here too
        return novelty

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, tuple(getattr(self, field.name) for field in fields(Record))


class StepResult(NamedTuple):
    """The answer to a batch and its record, which belong together whatever other threads do.

    Attributes:
        logits: The prediction, without a graph.
        record: What happened to the batch.
    """

    logits: Tensor
    record: Record

    def clone(self) -> "StepResult":
        """Copy all tensors: the next replay of a captured step overwrites them."""
        record, outcome = self.record, self.record.outcome
        if isinstance(outcome, LazyOutcome):
            outcome = outcome.clone()
        tensors: dict[str, Any] = {
            name: tensor.clone() for name, tensor in vars(record).items() if isinstance(tensor, Tensor)
        }
        return StepResult(self.logits.clone(), replace(record, outcome=outcome, **tensors))
