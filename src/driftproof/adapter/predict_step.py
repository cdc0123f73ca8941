"""Predict a batch and leave the state as it is."""

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from driftproof.adapter.method import Method
from driftproof.adapter.state import State
from driftproof.adapter.storage import Backup
from driftproof.components import Step
from driftproof.quarantine import mask_like, replace_bad
from driftproof.record import Record, StepResult

__all__ = ["predict_frozen", "predict_step", "run_networks"]


def run_networks(
    method: Method,
    state: State,
    images: Tensor,
    good: Tensor,
    make_step: Callable[..., Step],
    side_stream: torch.cuda.Stream | None = None,
) -> Step:
    """Run the detector and the adapting network on the good images of a batch; returns the step with its output."""
    images, trial = replace_bad(images, good), None
    if method.statistics.wants_trial:
        with torch.no_grad():
            trial = make_step(images)
            method.statistics.on_batch(trial)
        state.network.rollback()
    # Before the adapting network runs, so that one graph is alive at a time.
    state.detect(images, good, side_stream)
    with nullcontext() if method.memory is None else torch.no_grad():  # what is learned from is run again
        step = make_step(images, trial)
    with torch.no_grad():
        step.output = step.logits if method.output is None else method.output.predict(step)
    return step


@torch.no_grad()
def predict_step(method: Method, state: State, images: Tensor) -> StepResult:
    """Return what `train_step` would answer to a batch, without learning from it.

    Statistics adjust to the batch as in a step, and forget it afterwards. While guards fall back, the answer is the
    frozen network's. An output that needs the updated network answers from before the update.
    """
    before = Backup(state.storage)
    try:
        good, bad, *_ = state.quarantine.judge(images)
        step = run_networks(method, state, images, good, state.make_step)
        output = step.output
        if state.names and method.select is not None:
            method.select.weights(step)  # novelty scores read what the selection has run, as in a step
        can_learn = method.statistics.can_learn() if state.names else None
        if can_learn is not None:
            output = torch.where(can_learn, output, step.source_logits)
        counters = state.guard_counters
        if counters.get("num_batches", 0) + 1 < counters.get("falls_back_until", 0):
            output = predict_frozen(state, images, good)
        novelty = method.novelty(step)
        averages = state.health.averages
        record = Record(
            selected=torch.zeros_like(step.weights, dtype=torch.bool),
            novelty=novelty.where(mask_like(good, novelty), math.nan),
            quarantined=bad,
            averages=None if averages is None else averages.clone(),
        )
        return StepResult(output.detach().where(mask_like(good, output), math.nan), record)
    finally:
        before.restore()
        state.finish_step(failed=True)


@torch.no_grad()
def predict_frozen(state: State, images: Tensor, good: Tensor) -> Tensor:
    """Return the frozen network's logits, with the statistics that guards ask for; NaN for images that are not good."""
    of_training = state.guard_counters.get("of_training")
    with state.source.statistics_of_training() if of_training else nullcontext():
        logits: Tensor = state.source(replace_bad(images, good))
    state.source.rollback()
    return logits.where(mask_like(good, logits), torch.nan)
