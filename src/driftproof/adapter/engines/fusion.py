"""Puts fused operations in the place of what they fuse, in a network that torch.compile has traced."""

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from driftproof.kernels import KINDS, OPERATIONS

__all__ = ["fuse", "fused_alone", "fused_inductor"]

_LAYER = ("x", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_BATCH_NORMS = (F.batch_norm, torch.batch_norm)
_RELUS = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
_SUMS = (operator.add, torch.add, "add")


def fused_inductor(traced: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """What torch.compile calls to have a traced network compiled: `fuse`, then inductor."""
    from torch._inductor.compile_fx import compile_fx

    fuse(traced)
    with warnings.catch_warnings():
        # What it advises is what `precision` decides.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        return cast("Callable[..., Any]", compile_fx(traced, inputs))


def fused_alone(traced: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """What torch.compile calls to have nothing compiled: `fuse`, and every other operation as it was.

    Batch norms of somebody's own, and calls of the function, stay as well: operation by operation they run torch's
    kernels, which round otherwise.
    """
    fuse(traced, _is_of_a_plain_layer)
    return traced.forward


def fuse(traced: GraphModule, wanted: Callable[[Node], bool] = lambda _: True) -> int:
    """Replace batch norms that take the batch's statistics, with an addition before and a rectifier after them.

    Args:
        traced: Is changed.
        wanted: Of a batch norm that can be replaced, whether to do so.

    Returns:
        How many were replaced.
    """
    found = [node for node in traced.graph.nodes if _normalizes(node) and wanted(node)]
    if found:
        tickets = _tickets_for(traced.graph, found)
        for place, node in enumerate(found):
            _replace(traced.graph, node, tickets, place)
    traced.graph.lint()
    traced.recompile()
    return len(found)


def _normalizes(node: Node) -> bool:
    if node.target not in _BATCH_NORMS or len(node.args) != len(_LAYER):
        return False
    given = dict(zip(_LAYER, node.args, strict=True))
    image = _value(given["x"])
    own = given["training"] is True and given["running_mean"] is None and given["running_var"] is None
    learned = given["weight"] is not None and given["bias"] is not None
    return own and learned and image is not None and image.ndim == 4 and image.dtype in KINDS


def _is_of_a_plain_layer(node: Node) -> bool:
    layers = [kind for _, kind in node.meta.get("nn_module_stack", {}).values()]
    return layers[-1:] == [nn.BatchNorm2d]


def _tickets_for(graph: Graph, norms: list[Node]) -> Node:
    images = [image for norm in norms if (image := _value(norm.args[0])) is not None]
    widest = max(image.shape[1] for image in images)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        return graph.call_function(OPERATIONS.new_tickets.default, (len(norms), widest, images[0].device))


def _replace(graph: Graph, norm: Node, tickets: Node, place: int) -> None:
    x, _, _, weight, bias, _, _, eps = norm.args
    assert isinstance(x, Node)
    relu = _only_rectified(norm)
    summed = _is_sum(x) and _comes_last_backward(norm, x) and _given(weight) and _given(bias)
    operation = OPERATIONS.add_normalize if summed else OPERATIONS.normalize
    first = x.args if summed else (x,)
    # Others may use the sum before it is normalized.
    with graph.inserting_after(x if summed else norm):
        results = graph.call_function(operation.default, (*first, weight, bias, tickets, place, eps, relu is not None))
    _take_over(graph, results, 0, relu or norm)
    if relu is not None:
        graph.erase_node(norm)
    if summed:
        _take_over(graph, results, 1, x)


def _take_over(graph: Graph, results: Node, place: int, old: Node) -> None:
    with graph.inserting_after(results):
        new = graph.call_function(operator.getitem, (results, place))
    new.meta = old.meta
    old.replace_all_uses_with(new)
    graph.erase_node(old)


def _only_rectified(norm: Node) -> Node | None:
    users = list(norm.users)
    return users[0] if len(users) == 1 and users[0].target in _RELUS else None


def _given(argument: object) -> bool:
    return isinstance(argument, Node) and argument.op in ("placeholder", "get_attr")


def _is_sum(node: Node) -> bool:
    if node.target not in _SUMS or node.kwargs or len(node.args) != 2:
        return False
    values = [_value(argument) for argument in node.args]
    whole = _value(node)
    # What is normalized may no longer be the sum, where a model writes into that.
    return (whole is not None and whole._version == 0) and all(
        value is not None and value.shape == whole.shape and value.dtype == whole.dtype for value in values
    )


def _comes_last_backward(norm: Node, x: Node) -> bool:
    # The fused gradient is added to what the others have made by then. Of two it does not matter which comes first.
    return len(x.users) <= 2 or next(iter(x.users)) is norm


def _value(argument: object) -> Tensor | None:
    value = argument.meta.get("example_value") if isinstance(argument, Node) else None
    return value if isinstance(value, Tensor) else None
