"""The step as it is written: operation by operation, decided by the host."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from driftproof.adapter.lesson import draw_lesson
from driftproof.adapter.rollback import nothing_lost
from driftproof.components import Step
from driftproof.record import Outcome, Record, reason

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["Eager"]


class Eager:
    """Runs every step anew. The host waits for the device once, to learn whether the step can be kept.

    This is also what every other engine falls back on, so its methods are the whole of what an adapter asks.
    """

    def run(self, adapter: "Adapter", images: Tensor) -> tuple[Tensor, Record]:
        """The answer to a batch and what happened to it; what is learned is in the adapter afterwards."""
        try:
            with nothing_lost(adapter):
                step = adapter._look(images)
                result = _learn(adapter, step) if adapter._names else _predict(adapter, step)
            adapter.network.let_go()
            return result
        finally:
            # What was worth keeping has been committed by now.
            adapter.network.discard()
            adapter.source.discard()

    def run_eagerly(self, adapter: "Adapter", images: Tensor) -> tuple[Tensor, Record]:
        """As `run`, operation by operation whatever the engine."""
        return Eager.run(self, adapter, images)

    def equip(self, optimizer: torch.optim.Optimizer) -> None:
        """Have an optimizer that was just made move all parameters in one launch, where it can and may choose.

        Every engine does: a recorded step rounds as an eager one does then.
        """
        for group in optimizer.param_groups:
            if "capturable" in group and _is_free(group) and all(one.is_cuda for one in group["params"]):
                group["fused"] = True

    def settle(self, adapter: "Adapter") -> None:
        """Bring to the host what only the device knows."""

    def drop(self) -> None:
        """Forget everything that rests on where the adapter's tensors are; they are about to move."""


def _is_free(group: dict[str, Any]) -> bool:
    """Whether nobody has said how the optimizer is to go through its parameters."""
    return group.get("fused", False) is None and not group.get("foreach")


def _predict(adapter: "Adapter", step: Step) -> tuple[Tensor, Record]:
    novelty = adapter._novelty(step)
    sound = bool(step.distributed.all_true(step.logits.isfinite().all()))
    if sound:
        _commit(adapter, step)
    nobody = torch.zeros_like(step.weights, dtype=torch.bool)
    return step.answer, Record(nobody, novelty, outcome=Outcome(skipped=None if sound else _diagnosis(step)))


def _learn(adapter: "Adapter", step: Step) -> tuple[Tensor, Record]:
    lesson = draw_lesson(adapter, step)
    sound, wanted, stepped = adapter._stepper.attempt(lesson.objective, lesson.useful)
    adapter.network.leave()
    if sound and wanted:
        for part in adapter._parts:
            part.on_batch(step)
            if stepped:
                part.on_step(step)
    skipped = None if sound and wanted else _diagnosis(step, lesson.objective, sound=sound)
    selected = lesson.selected if sound else torch.zeros_like(lesson.selected)
    record = Record(selected, lesson.novelty, lesson.objective.detach(), Outcome(stepped, skipped))
    answer = step.answer.detach()
    if sound:
        if adapter.output == "after":
            with torch.no_grad():
                answer = adapter.network(step.images)
        # Last, so that a second look at the batch does not find it in the statistics of the stream already.
        _commit(adapter, step)
    return answer, record


def _commit(adapter: "Adapter", step: Step) -> None:
    adapter._index += 1
    adapter.network.commit()
    if step.compared_with_source:
        adapter.source.commit()


def _diagnosis(step: Step, objective: Tensor | None = None, *, sound: bool = False) -> str | None:
    """Why a batch was skipped; only then is there a reason to look closer."""
    if sound:
        return reason(sound=True, useful=False, images=True, logits=True, loss=True)
    seen = (step.images, step.logits, step.logits if objective is None else objective)
    healthy = torch.stack([tensor.isfinite().all() for tensor in seen])
    images, logits, loss = step.distributed.all_true(healthy).tolist()
    return reason(sound=False, useful=False, images=images, logits=logits, loss=loss)
