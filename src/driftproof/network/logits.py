"""Finds the logits in a model's output."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from driftproof.errors import ModelError

__all__ = ["LogitsAccessor", "read_logits"]

LogitsAccessor = str | int | Callable[[Any], Tensor]


def read_logits(output: Any, accessor: LogitsAccessor | None) -> Tensor:  # noqa: ANN401  # a model may return anything
    """Find the logits in a model's output."""
    found = output
    try:
        if callable(accessor):
            found = accessor(output)
        elif isinstance(accessor, int) or (isinstance(accessor, str) and isinstance(output, Mapping)):
            found = output[accessor]
        elif isinstance(accessor, str):
            found = getattr(output, accessor)
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise ModelError(f"`logits={accessor!r}` finds nothing in the model's output, {_describe(output)}.") from error
    if not isinstance(found, Tensor):
        raise ModelError(f"Expected a tensor of logits, but the model returned {_describe(found)}. Pass `logits=`.")
    if found.ndim < 2 or not torch.is_floating_point(found):
        raise ModelError(
            "Expected logits of shape (N, C) or (N, C, H, W) in floating point, "
            f"but got {tuple(found.shape)} of {found.dtype}."
        )
    return found


def _describe(output: Any) -> str:  # noqa: ANN401  # a model may return anything
    if isinstance(output, Mapping):
        return f"a {type(output).__name__} with the keys {list(output)}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"
