"""What happened to one batch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from driftproof.health import Health
from driftproof.tensor_list import clone_each

__all__ = ["LazyNovelty", "LazyOutcome", "Outcome", "Record", "StepResult", "skip_reason"]


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

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The arguments that are tensors."""
        return (self.flags,) if self.holds is None else (self.flags, self.holds)

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


class LazyNovelty:
    """A novelty that a record computes when it is first read.

    Args:
        compute: Computes it from the tensors, for good images and bad ones.
        tensors: What it needs of the step; kept until then.
    """

    def __init__(self, compute: Callable[..., Tensor], *tensors: Tensor) -> None:
        self.compute = compute
        self.tensors = tensors

    def read(self, bad: Tensor) -> Tensor:
        """The novelty; NaN for the images of a mask, (N,)."""
        with torch.inference_mode(False), torch.no_grad():
            novelty = self.compute(*self.tensors)
            return novelty.masked_fill(bad.view(-1, *[1] * (novelty.ndim - 1)), math.nan)


class _NoveltyField:
    """Computes a record's novelty on first access, and lets go what it was computed from."""

    def __get__(self, record: "Record", owner: type | None = None) -> Tensor:
        novelty: Tensor | LazyNovelty = vars(record)["novelty"]
        if isinstance(novelty, LazyNovelty):
            novelty = vars(record)["novelty"] = novelty.read(record.quarantined)
        return novelty

    def __set__(self, record: "Record", novelty: Tensor | LazyNovelty) -> None:
        vars(record)["novelty"] = novelty


@dataclass(frozen=True)
class Record:
    """What happened to one batch, read from `adapter.last` or `adapter.step(images).record`.

    Numbers are fetched from the device on access, so a loop that does not look pays nothing.

    Attributes:
        selected: Boolean mask of the samples the step learned from, (N,) or (N, H, W). All false where nothing learns;
            with a memory, the samples offered to it.
        novelty: How unfamiliar each sample is, same shape; larger is more novel. The default score is computed when it
            is first read, which costs a pass of the frozen network with a method that learns without it. Until then the
            record holds the batch, or its features: read it from records that you keep.
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

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"novelty": self.novelty}  # a copy has the numbers, not what they are computed from

    def __repr__(self) -> str:
        loss = "none" if self.loss is None else f"{self.loss:.4f}"
        outcome = self.skipped or ("stepped" if self.stepped else "no step")
        outcome = ", ".join([outcome, self.health.state, *self.actions])
        return f"Record(seen={self.seen}, kept={self.kept:.3f}, loss={loss}, {outcome})"


Record.novelty = _NoveltyField()  # type: ignore[assignment]  # after the fact: a dataclass would take it as a default


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
        record, outcome, novelty = self.record, self.record.outcome, vars(self.record)["novelty"]
        held = [self.logits, *(value for value in vars(record).values() if isinstance(value, Tensor))]
        held += novelty.tensors if isinstance(novelty, LazyNovelty) else ()
        held += outcome.tensors if isinstance(outcome, LazyOutcome) else ()
        copies = dict(zip(map(id, held), clone_each(held), strict=True))
        changed: dict[str, Any] = {
            name: copies[id(value)] for name, value in vars(record).items() if isinstance(value, Tensor)
        }
        if isinstance(novelty, LazyNovelty):
            changed["novelty"] = LazyNovelty(novelty.compute, *(copies[id(one)] for one in novelty.tensors))
        if isinstance(outcome, LazyOutcome):
            changed["outcome"] = LazyOutcome(*(copies[id(one)] for one in outcome.tensors))
        return StepResult(copies[id(self.logits)], replace(record, **changed))
