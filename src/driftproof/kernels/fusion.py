"""An FX pass that replaces batch norms, the addition before them and the ReLU after them by fused operators."""

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from driftproof.kernels import DTYPES, ops

__all__ = ["fuse", "fuse_only_backend", "fused_inductor"]

_BATCH_NORM_ARGS = ("x", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_BATCH_NORMS = (F.batch_norm, torch.batch_norm)
_RELUS = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
_SUMS = (operator.add, torch.add, "add")


class _Layer(NamedTuple):
    """A batch norm in a traced graph.

    Attributes:
        node: The node that computes it.
        arg_indices: Which of its arguments the operator that replaces it takes between `x` and `counters`.
        op: The operator that replaces it.
        add_op: The operator that replaces it together with the addition before it.
        outputs: The nodes that hold the results of `op`, by index.
    """

    node: Node
    arg_indices: tuple[int, ...]
    op: Any
    add_op: Any
    outputs: dict[int, Node]

    @property
    def x(self) -> Node:
        assert isinstance(self.node.args[0], Node)
        return self.node.args[0]

    @property
    def args(self) -> tuple[Any, ...]:
        return tuple(self.node.args[index] for index in self.arg_indices)


def fused_inductor(traced: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a traced network: `fuse`, then inductor. A backend of torch.compile."""
    from torch._inductor.compile_fx import compile_fx

    fuse(traced)
    with warnings.catch_warnings():
        # `precision` decides what this warning recommends.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        return cast("Callable[..., Any]", compile_fx(traced, inputs))


def fuse_only_backend(traced: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """Fuse batch norms and compile nothing else. A backend of torch.compile.

    Subclasses of `nn.BatchNorm2d` and calls of `F.batch_norm` stay as they are: an eager step runs PyTorch's kernels
    for them, which round differently.
    """
    fuse(traced, _is_plain_batch_norm)
    return traced.forward


def fuse(traced: GraphModule, is_wanted: Callable[[Node], bool] = lambda _: True) -> int:
    """Replace batch norms that use batch or interpolated statistics, with their addition and ReLU.

    Args:
        traced: The network, changed in place.
        is_wanted: Whether to replace a call of `F.batch_norm` that can be replaced.

    Returns:
        The number of batch norms replaced.
    """
    layers = [layer for node in traced.graph.nodes if (layer := _find_layer(node, is_wanted)) is not None]
    if layers:
        counters = _insert_counters(traced.graph, layers)
        for layer_index, layer in enumerate(layers):
            _replace(traced.graph, layer, counters, layer_index)
    traced.graph.lint()
    traced.recompile()
    return len(layers)


def _find_layer(node: Node, is_wanted: Callable[[Node], bool]) -> _Layer | None:
    x = _value(node.args[0]) if node.args else None
    if x is None or x.ndim != 4 or x.dtype not in DTYPES:
        return None
    if node.target is ops.interpolated_batch_norm.default:
        outputs = {cast("int", user.args[1]): user for user in node.users}
        indices = tuple(range(1, len(node.args) - 3))
        return _Layer(node, indices, ops.interpolated_batch_norm, ops.add_interpolated_batch_norm, outputs)
    if _uses_batch_statistics(node) and is_wanted(node):
        indices = tuple(_BATCH_NORM_ARGS.index(name) for name in ("weight", "bias", "eps"))
        return _Layer(node, indices, ops.batch_norm, ops.add_batch_norm, {0: node})
    return None


def _uses_batch_statistics(node: Node) -> bool:
    if node.target not in _BATCH_NORMS or len(node.args) != len(_BATCH_NORM_ARGS):
        return False
    given = dict(zip(_BATCH_NORM_ARGS, node.args, strict=True))
    of_batch = given["training"] is True and given["running_mean"] is None and given["running_var"] is None
    return of_batch and given["weight"] is not None and given["bias"] is not None


def _is_plain_batch_norm(node: Node) -> bool:
    types = [kind for _, kind in node.meta.get("nn_module_stack", {}).values()]
    return types[-1:] == [nn.BatchNorm2d]


def _insert_counters(graph: Graph, layers: list[_Layer]) -> Node:
    inputs = [x for layer in layers if (x := _value(layer.x)) is not None]
    channels = max(x.shape[1] for x in inputs)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        return graph.call_function(ops.new_counters.default, (len(layers), channels, inputs[0].device))


def _replace(graph: Graph, layer: _Layer, counters: Node, layer_index: int) -> None:
    x, outputs = layer.x, dict(layer.outputs)
    relu = _single_relu_user(outputs.get(0))
    adds = _is_sum(x) and _is_last_in_backward(layer.node, x) and all(_is_graph_input(value) for value in layer.args)
    op, inputs = (layer.add_op, x.args) if adds else (layer.op, (x,))
    # Other nodes may use the sum before the batch norm does.
    with graph.inserting_after(x if adds else layer.node):
        results = graph.call_function(op.default, (*inputs, *layer.args, counters, layer_index, relu is not None))
    if relu is not None:
        _replace_uses(graph, results, 0, relu)
        graph.erase_node(outputs.pop(0))
    for index, output in outputs.items():
        _replace_uses(graph, results, index + 1 if adds and index > 0 else index, output)
    if layer.node not in layer.outputs.values():
        graph.erase_node(layer.node)
    if adds:
        _replace_uses(graph, results, 1, x)


def _replace_uses(graph: Graph, results: Node, index: int, old: Node) -> None:
    with graph.inserting_after(results):
        new = graph.call_function(operator.getitem, (results, index))
    new.meta = old.meta
    old.replace_all_uses_with(new)
    graph.erase_node(old)


def _single_relu_user(node: Node | None) -> Node | None:
    users = [] if node is None else list(node.users)
    return users[0] if len(users) == 1 and users[0].target in _RELUS else None


def _is_graph_input(argument: object) -> bool:
    return not isinstance(argument, Node) or argument.op in ("placeholder", "get_attr")


def _is_sum(node: Node) -> bool:
    if node.target not in _SUMS or node.kwargs or len(node.args) != 2:
        return False
    values = [_value(argument) for argument in node.args]
    total = _value(node)
    # If a model writes into the sum, what is normalized is no longer the sum.
    return (total is not None and total._version == 0) and all(
        value is not None and value.shape == total.shape and value.dtype == total.dtype for value in values
    )


def _is_last_in_backward(norm: Node, x: Node) -> bool:
    # The fused kernel adds its gradient to the sum of the others. Of two summands the order does not matter.
    return len(x.users) <= 2 or next(iter(x.users)) is norm


def _value(argument: object) -> Tensor | None:
    value = argument.meta.get("example_value") if isinstance(argument, Node) else None
    return value if isinstance(value, Tensor) else None
