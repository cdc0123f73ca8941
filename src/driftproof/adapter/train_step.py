"""The whole step of an adapter, the same for every engine.

No operation depends on the values in a tensor and nothing is fetched from the device: what a script would decide with a
branch is computed either way and kept or undone with `torch.where`. So a step can run eagerly or be captured in a CUDA
graph and replayed.
"""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from driftproof.adapter.method import Method
from driftproof.adapter.objective import Objective, compute_novelty, compute_objective
from driftproof.adapter.optimizers import match_strides
from driftproof.adapter.predict_step import run_networks
from driftproof.adapter.state import State
from driftproof.adapter.storage import Backup
from driftproof.adapter.verdict import judge_step
from driftproof.components import Step
from driftproof.errors import ModelError
from driftproof.memories import Memory
from driftproof.quarantine import Judgement, mask_like
from driftproof.record import LazyNovelty, LazyOutcome, Record, StepResult
from driftproof.tensor_list import are_finite

__all__ = ["ObjectiveFn", "train_step"]

ObjectiveFn = Callable[..., Objective]


def train_step(
    method: Method,
    state: State,
    images: Tensor,
    *,
    make_step: Callable[..., Step] | None = None,
    objective: ObjectiveFn = compute_objective,
    side_stream: torch.cuda.Stream | None = None,
) -> StepResult:
    """Predict a batch and learn from it.

    Predict, decide what to learn from, compute the objective and its gradient, take the optimizer's step, act on the
    parameters, then keep or undo all of it.

    Args:
        method: The choices.
        state: Changed in place; after an error it is what it was.
        images: The batch.
        make_step: Runs the adapting network on images, as `State.make_step`; None is that.
        objective: `compute_objective`, or a compiled form of it.
        side_stream: CUDA stream on which the frozen network runs beside a detector; None runs it before.
    """
    make_step = make_step or state.make_step
    before = Backup(state.storage)
    try:
        judged = state.quarantine.judge(images, shared=state.distributed.size > 1)
        step = run_networks(method, state, images, judged.good, make_step, side_stream)
        state.quarantine.update(judged, state.distributed)
        before.keep_buffers("quarantine")
        if state.names:
            result = _learn(method, state, step, judged, before, make_step, objective)
        else:
            result = _predict_only(method, state, step, judged, before)
    except BaseException:
        before.restore()
        state.finish_step(failed=True)
        raise
    state.finish_step()
    return result


def _learn(
    method: Method,
    state: State,
    step: Step,
    judged: Judgement,
    before: Backup,
    make_step: Callable[..., Step],
    objective_fn: ObjectiveFn,
) -> StepResult:
    if step.classes < 2:
        raise ModelError(
            f"Expected logits of two classes or more, but got {tuple(step.logits.shape)}: the softmax over one class "
            "is 1 and teaches nothing. For a model with one logit z, pass a function as `logits=` that joins 0 and z "
            "along dimension 1."
        )

    memory = method.memory
    if memory is not None:
        with torch.no_grad():
            memory.update(step)

    # The gradient; each further evaluation runs the network again, at the parameters as they are then.
    evaluated: list[tuple[Step, Objective]] = []

    def evaluate() -> tuple[Tensor, ...]:
        current, earlier = learn_from, _per_sample(judged.good, step) if memory is None else None
        if evaluated:
            current = make_step(step.images, step) if memory is None else _recall(memory, make_step, step)
            current.output, earlier = learn_from.output, evaluated[0][1].selected
        objective = objective_fn(method, current, earlier)
        evaluated.append((current, objective))
        gradients = state.gradients(objective.loss)
        state.network.restore_batch_norms()
        step.join()
        return gradients

    with nullcontext() if memory is None else state.learning(memory):
        # What to learn from: the batch, or the memory that now includes it.
        learn_from = step if memory is None else _recall(memory, make_step, step)
        if method.gradient is None:
            gradients = evaluate()
        else:
            computed = method.gradient.compute(evaluate, state.trainable)
            gradients = tuple(map(match_strides, computed, state.trainable))
    learned, objective = evaluated[-1]
    with torch.no_grad():
        novelty = compute_novelty(method, step)

        # The step, and what follows it.
        gradients, due = _take_step(method, state, gradients, len(step.images))
        learned.gradients = gradients
        if method.teacher is not None:
            state.move_teacher(method.teacher.momentum)
        # From here to the last component, rows of the memory are exchanged between ranks, not those of the batch.
        with nullcontext() if memory is None else state.distributed.recalling(is_copied=memory.is_copied):
            for act in method.after:
                act.after_step(learned, state)

            # Whether to keep it.
            if memory is not None:
                objective = objective._replace(selected=_per_sample(judged.good, step))
            holds = method.statistics.find_holds()
            can_learn = None if holds is None else ~holds.any()
            finite, allowed, good, stepped, flags, learned_from = judge_step(
                method, state, step, objective, judged.any_good, gradients, before.changed_values(), can_learn, due
            )

            # Keep it, or none of it.
            if memory is not None:
                before.keep_buffers_where(finite, ["memory"])
            if method.detector is not None:
                before.keep_buffers_where(allowed, ["detector"])
            if method.after:
                before.keep_buffers_where(stepped, state.after_names)
            for component in method.components.values():
                component.on_batch(learned)
            before.keep_buffers_where(finite, ["statistics", "source_statistics"])
            before.keep_buffers_where(good)
            for component in method.components.values():
                component.on_step(learned)
            if state.reset_condition is not None:
                for component in method.components.values():
                    component.on_reset(learned, state.reset_condition)
        before.keep_buffers_where(stepped)
        before.keep_values_where(stepped)
        after = None if method.output is None else method.output.predict_after(step)
        output = step.output if after is None else torch.where(finite, after, step.output)
        if can_learn is not None and step.used_source:
            # What was learned with other statistics predicts badly with these.
            output = torch.where(can_learn, output, step.source_logits)
        _commit_statistics(state, step, finite, before, learned=None if memory is None else good)

        # The record. Nothing can fail once the counters have changed.
        outcome, loss = LazyOutcome(state.distributed.all_true(flags), holds), objective.loss.detach()
        result = _answer(state, step, output, learned_from, novelty, judged, loss, outcome, finite, before)
        state.update_counters(gradients, finite, good, stepped)
    return result


def _recall(memory: Memory, make_step: Callable[..., Step], step: Step) -> Step:
    """Run the adapting network on the memory, after a step of the batch."""
    recalled, mask = make_step(memory.images(), step, student_view=memory.augment), memory.mask()
    if mask is not None:
        recalled.weights = recalled.weights * mask_like(mask, recalled.weights)
    return recalled


def _predict_only(method: Method, state: State, step: Step, judged: Judgement, before: Backup) -> StepResult:
    step.join()
    novelty = compute_novelty(method, step)
    finite, images_ok = state.distributed.all_true(torch.stack([*are_finite([step.logits]), judged.any_good]))
    for component in method.components.values():
        component.on_batch(step)
    before.keep_buffers_where(finite)
    _commit_statistics(state, step, finite, before)
    nothing, yes = finite.new_zeros(step.sample_shape), torch.ones_like(finite)
    outcome = LazyOutcome(torch.stack([finite, yes, ~yes, images_ok, finite, yes, ~yes]))
    result = _answer(state, step, step.output, nothing, novelty, judged, None, outcome, finite, before)
    state.index.add_(finite)
    return result


def _answer(
    state: State,
    step: Step,
    output: Tensor,
    selected: Tensor,
    novelty: Tensor | LazyNovelty,
    judged: Judgement,
    loss: Tensor | None,
    outcome: LazyOutcome,
    finite: Tensor,
    before: Backup,
) -> StepResult:
    """Take in health and conclude; returns the answer to the good images, and NaN for the others."""
    state.health.update(step, selected)
    before.keep_buffers_where(finite, ["health"])
    if isinstance(novelty, Tensor):
        novelty = novelty.where(mask_like(judged.good, novelty), state.nan)
    record = Record(
        selected=selected,
        novelty=novelty,  # type: ignore[arg-type]  # who reads it gets a tensor
        quarantined=judged.bad,
        objective=loss,
        outcome=outcome,
        averages=before.for_record(state.health.averages),
    )
    result = StepResult(output.where(mask_like(judged.good, output), state.nan), record)
    before.commit()
    return result


def _per_sample(good_images: Tensor, step: Step) -> Tensor:
    """A mask of images as one of samples: pixels, where labels are maps."""
    shape = step.sample_shape
    return good_images if len(shape) == 1 else good_images.view(-1, 1, 1).expand(shape)


def _take_step(
    method: Method, state: State, gradients: tuple[Tensor, ...], images: int
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Step with the mean of all gradients that wait; returns their sum, and whether the step is due; None is yes."""
    batches, due = method.accumulate_for(state.distributed.global_count(images)), None
    if state.accumulated_grads:
        gradients = tuple(torch._foreach_add(state.accumulated_grads, gradients))
        due = state.accumulated_batches + 1 >= batches
    means = gradients if batches == 1 else torch._foreach_div(gradients, float(batches))
    optimizer = state.optimizer
    assert optimizer is not None  # something learns
    if method.lr_schedule is not None:
        for group in optimizer.param_groups:
            group["lr"].copy_(method.lr_schedule(state.num_steps) * group["initial_lr"])
    if state.fused_adam is not None and state.fused_adam.step(means):
        return gradients, due
    for parameter, gradient in zip(state.trainable, means, strict=True):
        parameter.grad = gradient
    try:
        optimizer.step()
    finally:
        for parameter in state.trainable:
            parameter.grad = None
    return gradients, due


def _commit_statistics(state: State, step: Step, finite: Tensor, before: Backup, learned: Tensor | None = None) -> None:
    """Keep what the networks that ran saw of the stream."""
    state.network.commit(learned)
    if step.used_source or learned is not None:
        state.source.commit(learned)
    for network in (state.teacher, state.detector):
        if network is not None:
            network.commit(learned)
    before.keep_buffers_where(finite)
