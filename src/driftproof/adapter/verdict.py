"""Whether a step is kept."""

from typing import NamedTuple

import torch
from torch import Tensor

from driftproof.adapter.method import Method
from driftproof.adapter.objective import Objective
from driftproof.adapter.state import State
from driftproof.components import Step, flatten
from driftproof.kernels import runs_triton
from driftproof.tensor_list import are_finite

__all__ = ["Verdict", "judge_step"]


class Verdict(NamedTuple):
    """What is kept of a step: 0-d booleans on the device, but for the last two.

    Attributes:
        finite: Whether every number of it is finite.
        allowed: Whether learning is not held back, besides.
        good: Whether there was anything to learn, besides.
        stepped: Whether the optimizer's step was due, besides.
        flags: What a `LazyOutcome` reads.
        learned_from: The samples that were learned from.
    """

    finite: Tensor
    allowed: Tensor
    good: Tensor
    stepped: Tensor
    flags: Tensor
    learned_from: Tensor


def judge_step(
    method: Method,
    state: State,
    step: Step,
    objective: Objective,
    any_good: Tensor,
    gradients: tuple[Tensor, ...],
    written: list[Tensor],
    can_learn: Tensor | None,
    due: Tensor | None,
) -> Verdict:
    """Judge a step that the optimizer has taken, without gradients; nothing is changed or fetched from the device.

    Args:
        method: The choices.
        state: Says whether a guard holds learning back.
        step: The batch.
        objective: What was learned, and which samples of the batch it counts as learned from.
        any_good: Whether any image of the batch is good.
        gradients: What the optimizer got.
        written: All floating-point values that the step wrote.
        can_learn: Whether the statistics allow learning; None is yes.
        due: Whether the optimizer's step was due; None is yes.
    """
    is_plain = method.memory is None and can_learn is None and due is None and state.distributed.size == 1
    if is_plain and _is_supported(step.logits, objective.selected, objective.loss, *written):
        from driftproof.kernels import triton_conclusion

        largest, signs = torch.linalg.vector_norm(written[0], torch.inf), (objective.has_signal, any_good)
        flags, learned_from = triton_conclusion.conclude(
            largest, objective.loss.detach(), step.logits.detach(), *signs, state.paused, objective.selected
        )
        finite, _, good, *_, allowed = flags.unbind()
        return Verdict(finite, allowed, good, good, flags, learned_from)
    stepped_ok, loss_ok, logits_ok = are_finite(written, [objective.loss], [step.logits])
    if due is not None:
        stepped_ok = torch.where(due, stepped_ok, *are_finite([flatten(gradients)]))
    finite = loss_ok & stepped_ok
    finite = finite if method.memory is None else finite & logits_ok
    allowed = finite > (state.paused if can_learn is None else state.paused | ~can_learn)  # and not
    good = allowed & objective.has_signal
    stepped = good if due is None else good & due
    flags = torch.stack([finite, objective.has_signal, stepped, any_good, logits_ok, loss_ok, state.paused])
    return Verdict(finite, allowed, good, stepped, flags, objective.selected & allowed)


def _is_supported(logits: Tensor, selected: Tensor, loss: Tensor, *written: Tensor) -> bool:
    """Whether one kernel can say it all: for predictions of images, in single precision."""
    if not logits.is_cuda or logits.ndim != 2 or len(written) != 1:
        return False
    single = logits.dtype == loss.dtype == written[0].dtype == torch.float32
    return single and logits.is_contiguous() and selected.is_contiguous() and runs_triton(logits.device)
