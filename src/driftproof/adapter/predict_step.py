"""Predict a batch and leave the state as it is."""

import math

import torch
from torch import Tensor

from driftproof.adapter.method import Method
from driftproof.adapter.state import State
from driftproof.quarantine import mask_like, replace_bad
from driftproof.record import Record, StepResult
from driftproof.scores import score_unfamiliarity

__all__ = ["predict_frozen", "predict_step", "score_frozen"]


@torch.no_grad()
def predict_step(method: Method, state: State, images: Tensor) -> StepResult:
    """Return what `train_step` would answer to a batch, without learning from it.

    Statistics adjust to the batch as in a step, and forget it afterwards. While guards fall back, the answer is the
    frozen network's. An output that needs the updated network answers from before the update.

    Args:
        method: The choices.
        state: Unchanged afterwards.
        images: The batch.
    """
    before = state.storage.backup()
    try:
        good, bad, *_ = state.quarantine.judge(images)
        images = replace_bad(images, good)
        if method.statistics.wants_trial:
            method.statistics.on_batch(state.make_step(images))
            state.network.rollback()
        step = state.make_step(images)
        step.output = output = step.logits if method.output is None else method.output.predict(step)
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
    """Return the frozen network's logits; NaN for images that are not good.

    Args:
        state: Its guards say whether the statistics of training are used.
        images: The batch.
        good: Mask of the good images, (N,).
    """
    source = state.source
    images = replace_bad(images, good)
    if state.guard_counters.get("of_training"):
        with source.statistics_of_training():
            logits = source(images)
    else:
        logits = source(images)
    source.rollback()
    return logits.where(mask_like(good, logits), torch.nan)


@torch.no_grad()
def score_frozen(state: State, images: Tensor, good: Tensor) -> Tensor:
    """Return the default novelty, of the frozen network.

    Args:
        state: Unchanged afterwards.
        images: A batch whose step did not run the frozen network.
        good: Mask of the good images, (N,); the first one takes the place of the others.
    """
    logits, features = state.source.try_features(replace_bad(images, good))
    novelty = score_unfamiliarity(state.source, logits, features)
    state.source.rollback()
    return novelty
