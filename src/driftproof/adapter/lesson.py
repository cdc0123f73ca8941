"""What a batch has to teach, before anything is learned from it."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from driftproof.components import Step
from driftproof.errors import ModelError
from driftproof.predictions import mean_prediction_entropy

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["Lesson", "draw_lesson"]


class Lesson(NamedTuple):
    """What a batch has to teach.

    Attributes:
        objective: The loss to descend, with its graph; with several ranks that of their whole batch.
        selected: The samples it counts.
        useful: Whether there is anything to learn, on any rank, as a boolean tensor.
        novelty: How unfamiliar each sample looks.
    """

    objective: Tensor
    selected: Tensor
    useful: Tensor
    novelty: Tensor


def draw_lesson(adapter: "Adapter", step: Step) -> Lesson:
    """Ask every part for its say; settles the step's answer and weights. Nothing is fetched from the device."""
    assert adapter.loss is not None  # the adapter's constructor saw to it
    if step.classes < 2:
        raise ModelError(
            f"Expected logits of two classes or more, but got {tuple(step.logits.shape)}: the softmax over one is 1, "
            "and teaches nothing. Where a model has one logit z, `logits=` can be a function that joins 0 and z along "
            "dimension 1."
        )
    step.answer = adapter.loss.predict(step)
    losses = adapter.loss.per_sample(step)
    if adapter.select is not None:
        step.weights = adapter.select.weights(step)
    selected = step.weights > 0
    weighted, kept = step.distributed.sum((step.weights * losses).sum(), selected.sum())
    count = kept.clamp(min=1) if adapter.average_over == "selected" else step.distributed.global_count(selected.numel())
    objective = _regularized(adapter, step, weighted / count)
    if not objective.requires_grad:
        raise ModelError(f"No parameter that {adapter.scope} lets move has any influence on the model's output.")
    useful = (kept > 0) | _has_mean(adapter, step)
    with torch.no_grad():
        return Lesson(objective, selected, useful, adapter._novelty(step))


def _regularized(adapter: "Adapter", step: Step, objective: Tensor) -> Tensor:
    if adapter.mean_entropy != 0:
        objective = objective - adapter.mean_entropy * mean_prediction_entropy(
            step.probabilities, _averaged_over(adapter, step), step.distributed
        )
    penalty = None if adapter.regularizer is None else adapter.regularizer.penalty(step)
    return objective if penalty is None else objective + penalty


def _has_mean(adapter: "Adapter", step: Step) -> Tensor | bool:
    """Whether the mean-entropy term is there and of any sample, on any rank: of none it is a constant."""
    if adapter.mean_entropy == 0:
        return False
    averaged = _averaged_over(adapter, step)
    return averaged is None or step.distributed.sum((averaged > 0).sum())[0] > 0


def _averaged_over(adapter: "Adapter", step: Step) -> Tensor | None:
    """Which samples the mean prediction is of; None is all of them."""
    if adapter.mean_entropy_over == "selected":
        return step.weights
    return None if adapter.select is None else adapter.select.present(step)
