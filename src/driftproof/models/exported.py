"""Load `torch.export` programs as modules that can be adapted."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from driftproof.errors import ModelError
from driftproof.files import check_regular_file

__all__ = ["load_exported", "restore_layers"]

_ADVICE = "Pass a `.pt2` file, or the Python model as `package.module:name` and its weights with `--weights`."


def load_exported(path: Path) -> nn.Module:
    """Load a program that `torch.export.save` wrote, with its normalization and linear layers as modules.

    The file is trusted: it decides what is computed.

    Args:
        path: The file, `.pt2`.
    """
    check_regular_file(path)
    _check_archive(path)
    try:
        program = torch.export.load(path)
        module = program.module()
    # A damaged file may raise almost anything.
    except Exception as error:
        raise ModelError(
            f"Expected {path} to be a program of `torch.export.save`, but it cannot be loaded: {error}. {_ADVICE}"
        ) from error
    assert isinstance(module, fx.GraphModule)
    return restore_layers(module, str(path))


def restore_layers(module: fx.GraphModule, name: str = "the program") -> fx.GraphModule:
    """Return an exported module in which batch, layer and group norms and linear layers are modules again.

    A program has operations in place of layers, so nothing could give them other statistics or find their parameters.

    Args:
        module: What `ExportedProgram.module()` returned; its parameters are taken over.
        name: Its name, for errors.
    """
    graph = module.graph
    _check_batch_size(graph, name)
    for node in list(graph.nodes):
        build = _LAYERS.get(node.target) if node.op == "call_function" else None
        owner = _find_owner(module, node) if build is not None else None
        if build is None or owner is None:
            continue
        parent, _, last = owner.rpartition(".")
        module.get_submodule(parent).register_module(last, build(module, node))
        with graph.inserting_before(node):
            layer = graph.call_module(owner, (node.args[0],))
        node.replace_all_uses_with(layer)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


def _check_batch_size(graph: fx.Graph, name: str) -> None:
    for node in graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        if isinstance(value, torch.Tensor) and value.ndim and isinstance(value.shape[0], int):
            raise ModelError(
                f"Expected a program for batches of any size, but {name} takes {value.shape[0]} images only. "
                "Export the model again with `dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)`."
            )


def _find_owner(module: fx.GraphModule, node: fx.Node) -> str | None:
    """Return the name of the layer that an operation's parameters belong to; None if that is not one layer alone."""
    owners = {
        str(argument.target).rpartition(".")[0]
        for argument in node.args[1:]
        if isinstance(argument, fx.Node) and argument.op == "get_attr"
    }
    owner = owners.pop() if len(owners) == 1 else ""
    users = [user for user in module.graph.nodes if user.op == "call_function" and user is not node]
    is_shared = any(
        isinstance(argument, fx.Node) and argument.op == "get_attr" and str(argument.target).rpartition(".")[0] == owner
        for user in users
        for argument in user.args
    )
    has_children = bool(owner) and any(True for _ in module.get_submodule(owner).children())
    return owner if owner and not is_shared and not has_children else None


def _read(module: fx.GraphModule, argument: Any) -> Any:  # noqa: ANN401  # a tensor, a number or None
    if not isinstance(argument, fx.Node):
        return argument
    found: Any = module
    for part in str(argument.target).split("."):
        found = getattr(found, part)
    return found


def _arguments(module: fx.GraphModule, node: fx.Node, defaults: tuple[Any, ...]) -> list[Any]:
    given = [_read(module, argument) for argument in node.args[1:]]
    return [*given, *defaults[len(given) :]]


def _take_over(layer: nn.Module, **tensors: torch.Tensor | None) -> nn.Module:
    for name, tensor in tensors.items():
        if tensor is not None:
            setattr(layer, name, tensor)
    return layer.eval()


def _build_batch_norm(module: fx.GraphModule, node: fx.Node) -> nn.Module:
    weight, bias, mean, variance, _, momentum, eps, _ = _arguments(
        module, node, (None, None, None, None, False, 0.1, 1e-5, True)
    )
    source = node.args[0]
    assert isinstance(source, fx.Node)
    kinds: dict[int, type[nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d]]
    kinds = {4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    kind = kinds.get(source.meta["val"].ndim, nn.BatchNorm1d)
    channels = source.meta["val"].shape[1]
    layer = kind(int(channels), eps, momentum, affine=weight is not None, track_running_stats=mean is not None)
    return _take_over(layer, weight=weight, bias=bias, running_mean=mean, running_var=variance)


def _build_layer_norm(module: fx.GraphModule, node: fx.Node) -> nn.Module:
    shape, weight, bias, eps, _ = _arguments(module, node, (None, None, None, 1e-5, True))
    layer = nn.LayerNorm(shape, eps, elementwise_affine=weight is not None, bias=bias is not None)
    return _take_over(layer, weight=weight, bias=bias)


def _build_group_norm(module: fx.GraphModule, node: fx.Node) -> nn.Module:
    groups, weight, bias, eps, _ = _arguments(module, node, (1, None, None, 1e-5, True))
    return _take_over(nn.GroupNorm(groups, len(weight), eps), weight=weight, bias=bias)


def _build_linear(module: fx.GraphModule, node: fx.Node) -> nn.Module:
    weight, bias = _arguments(module, node, (None, None))
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    return _take_over(layer, weight=weight, bias=bias)


_LAYERS: dict[Any, Callable[[fx.GraphModule, fx.Node], nn.Module]] = {
    torch.ops.aten.batch_norm.default: _build_batch_norm,
    torch.ops.aten.layer_norm.default: _build_layer_norm,
    torch.ops.aten.group_norm.default: _build_group_norm,
    torch.ops.aten.linear.default: _build_linear,
}


def _check_archive(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        raise ModelError(f"Expected {path} to be a program of `torch.export.save`, but it is no archive. {_ADVICE}")
    with zipfile.ZipFile(path) as archive:
        entries = {entry.partition("/")[2] for entry in archive.namelist()}
    if "constants.pkl" in entries and any(entry.startswith("code/") for entry in entries):
        raise ModelError(
            f"Expected a model that can be adapted, but {path} is TorchScript: its layers take no other statistics. "
            "Pass the Python model as `package.module:name`, with the weights of `torch.jit.load(…).state_dict()`; or "
            "export it with `torch.export.save` and pass the `.pt2` file."
        )
