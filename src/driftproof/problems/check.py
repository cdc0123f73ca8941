"""`check`: the problems of a model and of its images."""

import copy
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from driftproof.errors import ModelError
from driftproof.network import LogitsAccessor, read_logits
from driftproof.norms import batch_norms
from driftproof.problems.batches import read_batches
from driftproof.problems.inputs import check_inputs
from driftproof.problems.model import find_model_problems
from driftproof.problems.outputs import check_outputs
from driftproof.problems.problem import Problem, Severity
from driftproof.problems.stream import check_batch_sizes, check_order

__all__ = ["check"]


def check(
    model: nn.Module, images: Tensor | Iterable[Tensor] | None = None, *, logits: LogitsAccessor | None = None
) -> list[Problem]:
    """Return the problems of adapting a model, errors first.

    An empty list means that every method applies as in the paper. Without images the model is inspected, not run. With
    images a copy of it predicts the first 1024 of them, and the list includes mistakes of the data: inputs that are
    not prepared as in training, outputs that are no logits, a stream in the order of its classes, and small batches.
    Inputs are judged by the running statistics of the first batch norm. A change of domain is not reported.

    Args:
        model: The trained model.
        images: A batch, or batches in the order of the stream; pairs (images, labels) are fine.
        logits: Where the logits are in the model's output, as for `Adapter`.

    Examples:
        >>> for problem in check(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))):
        ...     print(problem.severity, "-", problem.message)
        warning - The model has no batch norm, so batch, blended and TTN statistics have no effect
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Softmax(dim=1))
        >>> check(model, torch.rand(8, 3, 2, 2))[0].message
        'The model returns probabilities, not logits'
    """
    problems = list(find_model_problems(model))
    if images is not None and not any(problem.severity == "error" for problem in problems):
        problems += _find_data_problems(model, images, logits)
    order: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
    return sorted(problems, key=lambda problem: order[problem.severity])


def _find_data_problems(
    model: nn.Module, images: Tensor | Iterable[Tensor], accessor: LogitsAccessor | None
) -> Iterator[Problem]:
    batches, unusable = read_batches(images, next(model.parameters()).device)
    yield from unusable
    if not batches:
        return
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    same_shape = len({batch.shape[1:] for batch in batches}) == 1
    yield from check_inputs(copied, torch.cat(batches) if same_shape else batches[0])
    try:
        outputs = [_predict(copied, batch, accessor) for batch in batches]
    except Exception as error:  # anything a user's own forward may raise
        yield _forward_problem(error, batches[0])
        return
    yield from check_outputs(outputs)
    if outputs[0].ndim == 2:
        if any(True for _ in batch_norms(model)):
            yield from check_batch_sizes([len(batch) for batch in batches])
        yield from check_order([output.argmax(dim=1).cpu() for output in outputs])


@torch.no_grad()
def _predict(model: nn.Module, images: Tensor, accessor: LogitsAccessor | None) -> Tensor:
    return read_logits(model(images), accessor).float()


def _forward_problem(error: Exception, images: Tensor) -> Problem:
    if isinstance(error, ModelError):
        return Problem("error", str(error).rstrip("."), "Pass the same `logits=` to the method.")
    channels_last = images.ndim == 4 and images.shape[-1] in (1, 3) and images.shape[1] not in (1, 3)
    advice = "Move the channels to the front: `images.permute(0, 3, 1, 2)`" if channels_last else "Check their shape"
    reason = (str(error).splitlines() or [""])[0].rstrip(".")
    message = f"The model fails on images of shape {tuple(images.shape)}: {type(error).__name__}: {reason}"
    return Problem("error", message, f"{advice}.")
