"""Whether a step is kept."""

from typing import NamedTuple

import torch
from torch import Tensor

from driftproof.adapter.method import Method
from driftproof.adapter.objective import Objective
from driftproof.adapter.state import State
from driftproof.components import Step, flatten
from driftproof.kernels import runs_triton
from driftproof.quarantine import Judgement, expand_mask
from driftproof.record import LazyOutcome
from driftproof.tensor_list import are_finite

__all__ = ["Update", "Verdict", "judge_step"]


class Update(NamedTuple):
    """A step that the optimizer has taken.

    Attributes:
        gradients: The sum of all that waited for it; empty where nothing learns.
        due: Whether it was due, as a 0-d tensor; None is yes.
    """

    gradients: tuple[Tensor, ...]
    due: Tensor | None


class Verdict(NamedTuple):
    """What is kept of a step: 0-d booleans on the device, each of which implies those before it.

    Attributes:
        finite: Whether every number of it is finite.
        allowed: Whether learning is not held back, besides.
        good: Whether there was anything to learn, besides.
        stepped: Whether the optimizer's step was due, besides.
        learned_from: The samples that were learned from.
        outcome: What the record says of it.
        can_learn: Whether the statistics allow learning; None is always.
    """

    finite: Tensor
    allowed: Tensor
    good: Tensor
    stepped: Tensor
    learned_from: Tensor
    outcome: LazyOutcome
    can_learn: Tensor | None = None


def judge_step(
    method: Method,
    state: State,
    step: Step,
    *,
    judged: Judgement,
    objective: Objective | None,
    update: Update,
    written: list[Tensor],
) -> Verdict:
    """Judge a step that was taken; nothing is changed or fetched from the device.

    Args:
        method: The choices.
        state: Says whether a guard holds learning back.
        step: The batch.
        judged: Which of its images are good.
        objective: What was learned; None where nothing learns.
        update: The step.
        written: All floating-point values that it wrote.
    """
    if objective is None:
        return _judge_prediction(state, step, judged)
    holds, due = method.statistics.find_holds(), update.due
    selected = objective.selected if method.memory is None else expand_mask(judged.good, step.sample_shape)
    is_plain = method.memory is None and holds is None and due is None and state.distributed.size == 1
    if is_plain and _is_supported(step.logits, selected, objective.loss, *written):
        from driftproof.kernels import triton_conclusion

        largest, signs = torch.linalg.vector_norm(written[0], torch.inf), (objective.has_signal, judged.any_good)
        flags, learned_from = triton_conclusion.conclude(
            largest, objective.loss.detach(), step.logits.detach(), *signs, state.paused, selected
        )
        finite, _, good, *_, allowed = flags.unbind()
        return Verdict(finite, allowed, good, good, learned_from, LazyOutcome(flags))
    stepped_ok, loss_ok, logits_ok = are_finite(written, [objective.loss], [step.logits])
    if due is not None:
        stepped_ok = torch.where(due, stepped_ok, *are_finite([flatten(update.gradients)]))
    finite = loss_ok & stepped_ok
    finite = finite if method.memory is None else finite & logits_ok
    can_learn = None if holds is None else ~holds.any()
    allowed = finite > (state.paused if can_learn is None else state.paused | ~can_learn)  # and not
    good = allowed & objective.has_signal
    stepped = good if due is None else good & due
    flags = torch.stack([finite, objective.has_signal, stepped, judged.any_good, logits_ok, loss_ok, state.paused])
    outcome = LazyOutcome(state.distributed.all_true(flags), holds)
    return Verdict(finite, allowed, good, stepped, selected & allowed, outcome, can_learn)


def _judge_prediction(state: State, step: Step, judged: Judgement) -> Verdict:
    """Judge a batch from which nothing is learned."""
    finite, any_good = state.distributed.all_true(torch.stack([*are_finite([step.logits]), judged.any_good]))
    yes = torch.ones_like(finite)
    outcome = LazyOutcome(torch.stack([finite, yes, ~yes, any_good, finite, yes, ~yes]))
    return Verdict(finite, finite, finite, ~yes, finite.new_zeros(step.sample_shape), outcome)


def _is_supported(logits: Tensor, selected: Tensor, loss: Tensor, *written: Tensor) -> bool:
    """Whether one kernel can say it all: for predictions of images, in single precision."""
    if not logits.is_cuda or logits.ndim != 2 or len(written) != 1:
        return False
    single = logits.dtype == loss.dtype == written[0].dtype == torch.float32
    return single and logits.is_contiguous() and selected.is_contiguous() and runs_triton(logits.device)
