"""Tensors that a model keeps between calls, such as attention maps."""

import operator
from typing import Any

from torch import Tensor

__all__ = ["detach_in", "holds_graph"]


def detach_in(value: Any) -> Any:  # noqa: ANN401  # a model may keep anything
    """Detach a tensor; tensors in a plain dictionary or list are replaced in it."""
    if isinstance(value, Tensor):
        return value if value.is_leaf else value.detach()
    if type(value) is tuple:
        detached = tuple(map(detach_in, value))
        return value if all(map(operator.is_, detached, value)) else detached
    if type(value) in (dict, list):
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            detached = detach_in(item)
            if detached is not item:
                value[key] = detached
    return value


def holds_graph(value: Any) -> bool:  # noqa: ANN401  # a model may keep anything
    """Whether there is a tensor with a graph."""
    if isinstance(value, Tensor):
        return not value.is_leaf
    if type(value) in (dict, list, tuple):
        return any(map(holds_graph, value.values() if isinstance(value, dict) else value))
    return False
