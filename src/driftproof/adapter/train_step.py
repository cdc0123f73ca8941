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
from driftproof.adapter.predict_step import run_networks
from driftproof.adapter.state import State
from driftproof.adapter.storage import Backup
from driftproof.adapter.verdict import Update, Verdict, judge_step
from driftproof.components import Step
from driftproof.errors import ModelError
from driftproof.optimizers import match_strides
from driftproof.quarantine import expand_mask, mask_like
from driftproof.record import Record, StepResult
from driftproof.scores import Unfamiliarity

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
        # Predict.
        judged = state.quarantine.judge(images, shared=state.distributed.size > 1)
        step = run_networks(method, state, images, judged.good, make_step, side_stream)
        state.quarantine.update(judged, state.distributed)

        # What to learn from, the objective and its gradient.
        learned, found, gradients = _find_gradients(method, state, step, judged.good, make_step, objective)

        with torch.no_grad():
            # While the parameters are those that predicted. The default score needs none of them.
            waits = isinstance(method.novelty, Unfamiliarity)
            novelty = None if waits else compute_novelty(method, step)

            # The optimizer's step, and what follows it.
            update = _take_step(method, state, gradients, len(images))
            _act_after(method, state, learned, update)
            if novelty is None:  # by now it is known whether the frozen network ran
                novelty = compute_novelty(method, step)

            # Keep it, or undo it.
            verdict = judge_step(
                method, state, step, judged=judged, objective=found, update=update, written=before.changed_values()
            )
            _keep(method, state, learned, verdict, before)

            # The answer and its record. Nothing can fail once the counters have changed.
            output = _choose_output(method, state, step, verdict)
            state.health.update(step, verdict.learned_from)
            _commit_statistics(state, step, learned=None if method.memory is None else verdict.good)
            before.keep_buffers({}, verdict.finite)
            if isinstance(novelty, Tensor):
                novelty = novelty.where(mask_like(judged.good, novelty), state.nan)
            record = Record(
                selected=verdict.learned_from,
                novelty=novelty,  # type: ignore[arg-type]  # who reads it gets a tensor
                quarantined=judged.bad,
                objective=None if found is None else found.loss.detach(),
                outcome=verdict.outcome,
                averages=before.for_record(state.health.averages),
            )
            result = StepResult(output.where(mask_like(judged.good, output), state.nan), record)
            before.commit()
            waiting = update.gradients if update.due is not None else None
            state.update_counters(verdict.finite, verdict.good, verdict.stepped, waiting)
    except BaseException:
        before.restore()
        state.finish_step(failed=True)
        raise
    state.finish_step()
    return result


def _find_gradients(
    method: Method,
    state: State,
    step: Step,
    good: Tensor,
    make_step: Callable[..., Step],
    objective_fn: ObjectiveFn,
) -> tuple[Step, Objective | None, tuple[Tensor, ...]]:
    """The pass that is learned from, its objective and the gradients; None and no gradients where nothing learns."""
    if not state.names:
        step.join()
        return step, None, ()
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

    def recall() -> Step:
        """Run the adapting network on the memory, which now includes the batch."""
        assert memory is not None
        recalled, mask = make_step(memory.images(), step, student_view=memory.augment), memory.mask()
        if mask is not None:
            recalled.weights = recalled.weights * mask_like(mask, recalled.weights)
        return recalled

    evaluated: list[tuple[Step, Objective]] = []

    def evaluate() -> tuple[Tensor, ...]:
        """The gradients at the parameters as they are now; the network runs again, but for the first time."""
        current, earlier = learn_from, expand_mask(good, step.sample_shape) if memory is None else None
        if evaluated:
            current = make_step(step.images, step) if memory is None else recall()
            current.output, earlier = learn_from.output, evaluated[0][1].selected
        objective = objective_fn(method, current, earlier)
        evaluated.append((current, objective))
        gradients = state.gradients(objective.loss)
        state.network.restore_batch_norms()
        step.join()
        return gradients

    with nullcontext() if memory is None else state.learning(memory):
        learn_from = step if memory is None else recall()
        if method.gradient is None:
            gradients = evaluate()
        else:
            computed = method.gradient.compute(evaluate, state.trainable)
            gradients = tuple(map(match_strides, computed, state.trainable))
    return *evaluated[-1], gradients


def _take_step(method: Method, state: State, gradients: tuple[Tensor, ...], images: int) -> Update:
    """Step with the mean of all gradients that wait."""
    optimizer, due = state.optimizer, None
    if optimizer is None:
        return Update((), None)
    batches = method.accumulate_for(state.distributed.global_count(images))
    if state.accumulated_grads:
        gradients = tuple(torch._foreach_add(state.accumulated_grads, gradients))
        due = None if batches == 1 else state.accumulated_batches + 1 >= batches
    means = gradients if batches == 1 else torch._foreach_div(gradients, float(batches))
    if method.lr_schedule is not None:
        for group in optimizer.param_groups:
            group["lr"].copy_(method.lr_schedule(state.num_steps) * group["initial_lr"])
    if state.fused_adam is not None and state.fused_adam.step(means):
        return Update(gradients, due)
    for parameter, gradient in zip(state.trainable, means, strict=True):
        parameter.grad = gradient
    try:
        optimizer.step()
    finally:
        for parameter in state.trainable:
            parameter.grad = None
    return Update(gradients, due)


def _act_after(method: Method, state: State, learned: Step, update: Update) -> None:
    """Move the teacher, and let the components of `after=` change the parameters."""
    learned.gradients = update.gradients
    if method.teacher is not None and update.gradients:
        state.move_teacher(method.teacher.momentum)
    if method.after:
        with state.recalling(method.memory):
            for act in method.after:
                act.after_step(learned, state)


def _keep(method: Method, state: State, learned: Step, verdict: Verdict, before: Backup) -> None:
    """Keep what the step and the components wrote, each on its condition, or undo it; let components take note."""
    components = method.components.values()
    ends = dict.fromkeys(state.after_names, verdict.stepped)
    before.keep_buffers({"quarantine": None, "memory": verdict.finite, "detector": verdict.allowed, **ends})
    with state.recalling(method.memory):
        for component in components:
            component.on_batch(learned)
        follows_stream = dict.fromkeys(("statistics", "source_statistics", "novelty"), verdict.finite)
        before.keep_buffers(follows_stream, verdict.good)
        if not state.names:
            return
        for component in components:
            component.on_step(learned)
        if state.reset_condition is not None:
            for component in components:
                component.on_reset(learned, state.reset_condition)
    before.keep_buffers({}, verdict.stepped)
    before.keep_values_where(verdict.stepped)


def _choose_output(method: Method, state: State, step: Step, verdict: Verdict) -> Tensor:
    """The prediction from before the update, or what takes its place."""
    output = step.output
    if method.output is not None and state.names:
        after = method.output.predict_after(step)
        output = output if after is None else torch.where(verdict.finite, after, output)
    if verdict.can_learn is not None and step.used_source:
        # What was learned with other statistics predicts badly with these.
        output = torch.where(verdict.can_learn, output, step.source_logits)
    return output


def _commit_statistics(state: State, step: Step, learned: Tensor | None) -> None:
    """Take over what the networks that ran saw of the stream."""
    state.network.commit(learned)
    if step.used_source or learned is not None:
        state.source.commit(learned)
    for network in (state.teacher, state.detector):
        if network is not None:
            network.commit(learned)
