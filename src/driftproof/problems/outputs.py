"""Problems of a model's outputs."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from driftproof.problems.problem import Problem

__all__ = ["check_outputs"]

_TOLERANCE = 0.01  # half precision rounds to about a thousandth


def check_outputs(outputs: Sequence[Tensor]) -> Iterator[Problem]:
    """Find outputs that are no logits.

    Args:
        outputs: What the model returned for each batch, (N, C) or (N, C, H, W).
    """
    if not all(torch.isfinite(output).any() for output in outputs):
        yield Problem("error", "The model returns NaN or Inf", "Check its weights and the images.")
    elif outputs[0].shape[1] == 1:
        message = "The model has one output, whose softmax is always 1"
        yield Problem("error", message, "Return two logits for a binary decision: `torch.cat([0 * z, z], dim=1)`.")
    elif all(map(_are_probabilities, outputs)):
        fix = "Remove the softmax at its end, or return the logarithm of the probabilities."
        yield Problem("error", "The model returns probabilities, not logits", fix)
    elif all(map(_are_log_probabilities, outputs)):
        message = "The model returns log-probabilities, so energy scores are the same for all images"
        yield Problem("note", message, "All else works. For energy scores, remove the log-softmax at its end.")


def _are_probabilities(output: Tensor) -> bool:
    inside = bool((output >= 0).all() and (output <= 1 + _TOLERANCE).all())
    return inside and bool(((output.sum(dim=1) - 1).abs() < _TOLERANCE).all())


def _are_log_probabilities(output: Tensor) -> bool:
    return bool((output <= _TOLERANCE).all() and (output.logsumexp(dim=1).abs() < _TOLERANCE).all())
