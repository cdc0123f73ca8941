"""The objective of one batch, from the choices of a method."""

from typing import NamedTuple

import torch
from torch import Tensor

from driftproof.adapter.method import Method
from driftproof.components import Component, Step
from driftproof.errors import ComponentError, ModelError
from driftproof.predictions import mean_prediction_entropy
from driftproof.record import LazyNovelty
from driftproof.scores import Unfamiliarity
from driftproof.selection import SampleWeights

__all__ = ["Objective", "compute_novelty", "compute_objective"]

_CONCENTRATED = 0.98


class Objective(NamedTuple):
    """What a batch has to teach.

    Attributes:
        loss: The loss to minimize, a 0-d tensor with its graph; over the batch of all ranks.
        selected: The samples that attract, as a boolean mask.
        has_signal: Whether there is anything to learn on any rank, as a 0-d tensor.
    """

    loss: Tensor
    selected: Tensor
    has_signal: Tensor


def compute_objective(method: Method, step: Step, selected_before: Tensor | None = None) -> Objective:
    """Compute the objective; sets the step's weights. Nothing is fetched from the device.

    Args:
        method: The choices.
        step: The batch to learn from.
        selected_before: Only these samples can be selected; None is all of them.
    """
    assert method.loss is not None  # Method checks it
    # The weights come first, since a loss may look at the selected samples alone.
    selected = _set_weights(method, step, selected_before)
    losses = _check_per_sample(method.loss, "a loss", method.loss.per_sample(step), step)
    weighted, kept = step.distributed.sum((step.weights * losses).sum(), selected.sum())
    per_batch = method.average_over == "batch"
    count = step.distributed.global_count(selected.numel()) if per_batch else kept.clamp(min=1)
    loss = weighted / count
    if step.repel_weights is not None:
        repelled = step.repel_weights > 0
        weighted, number = step.distributed.sum((step.repel_weights * losses).sum(), repelled.sum())
        loss = loss - weighted / (count if per_batch else number.clamp(min=1))
        kept = kept + number
    least = 1
    if method.mean_entropy != 0:
        averaged = _averaged_samples(method, step)
        weight = method.mean_entropy * method.statistics.trust(step)
        loss = loss - weight * mean_prediction_entropy(step.probabilities, averaged, step.distributed)
        if averaged is None:
            least = 0  # the mean prediction of the whole batch always teaches something
        else:
            kept = kept + step.distributed.sum((averaged > 0).sum())[0]  # that of no samples is a constant
    has_signal = kept >= least
    penalty = None if method.regularizer is None else method.regularizer.penalty(step)
    if penalty is not None and penalty.ndim != 0:
        raise ComponentError(
            f"Expected {type(method.regularizer).__name__} to return a penalty without dimensions, but got shape "
            f"{tuple(penalty.shape)}. Sum it up."
        )
    loss = loss if penalty is None else loss + penalty
    if not loss.requires_grad:
        raise ModelError(f"No parameter that {method.scope} trains has any influence on the model's output.")
    return Objective(loss, selected, has_signal)


@torch.no_grad()
def compute_novelty(method: Method, step: Step) -> Tensor | LazyNovelty:
    """How unfamiliar each sample is, by the method's score; the default one is computed when it is read."""
    deferred = method.novelty.defer(step) if isinstance(method.novelty, Unfamiliarity) else None
    return method.novelty(step) if deferred is None else LazyNovelty(deferred[0], *deferred[1])


def _set_weights(method: Method, step: Step, selected_before: Tensor | None) -> Tensor:
    """Set the step's weights from the selection, the memory and an earlier pass together; return who attracts."""
    if method.select is None and method.memory is None and selected_before is not None:
        step.weights = selected_before.to(torch.promote_types(step.logits.dtype, torch.float32))
        return selected_before
    if method.select is None:
        attract, repel = step.weights, None
    else:
        given = method.select.weights(step)
        attract, repel = given if isinstance(given, SampleWeights) else (given, None)
        attract = _check_per_sample(method.select, "weights", attract, step)
        if repel is not None:
            repel = _check_per_sample(method.select, "repelling weights", repel, step)
            valid = method.select.valid_mask(step)
            repel = repel if valid is None else repel * valid
    remembered = None if method.memory is None else method.memory.weights(step)
    if remembered is not None:
        assert method.memory is not None
        remembered = _check_per_sample(method.memory, "weights", remembered, step)
        attract, repel = attract * remembered, None if repel is None else repel * remembered
    if selected_before is not None:
        attract = attract * selected_before
        repel = None if repel is None else repel * selected_before
    step.weights = attract.detach() if attract.requires_grad else attract
    step.repel_weights = None if repel is None else repel.detach()
    return step.weights > 0


def _averaged_samples(method: Method, step: Step) -> Tensor | None:
    """Which samples the mean prediction is of, as weights; None is all of them."""
    if method.mean_entropy_over == "selected":
        return step.weights
    valid = None if method.select is None else method.select.valid_mask(step)
    remembered = None if method.memory is None else method.memory.weights(step)
    if remembered is not None:
        valid = remembered if valid is None else valid * remembered
    if method.mean_entropy_over == "batch":
        return valid
    # Are the predictions on fewer classes than the frozen network's?
    pair = step.probabilities.detach(), step.source_probabilities
    ours, source = (mean_prediction_entropy(p, distributed=step.distributed) for p in pair)
    every = torch.ones_like(step.weights) if valid is None else valid
    return torch.where(ours < _CONCENTRATED * source, every, step.weights)


def _check_per_sample(component: Component, what: str, values: object, step: Step) -> Tensor:
    """Refuse anything but one number per sample: a wrong shape would broadcast, and train on nonsense."""
    name, expected = type(component).__name__, step.sample_shape
    if not isinstance(values, Tensor):
        raise ComponentError(f"Expected {name} to return {what} as a tensor, but got {type(values).__name__}.")
    if tuple(values.shape) != expected:
        raise ComponentError(
            f"Expected {name} to return {what} of shape {expected}, one number per sample, but got "
            f"{tuple(values.shape)}."
        )
    if values.device != step.logits.device or not (values.is_floating_point() or values.dtype == torch.bool):
        raise ComponentError(
            f"Expected {name} to return {what} as floating-point numbers on {step.logits.device}, but got "
            f"{values.dtype} on {values.device}."
        )
    return values
