"""The places where an adapter keeps tensors, enumerated once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from driftproof.network import BatchNormHook, Network
from driftproof.norms import BatchNorm

__all__ = ["Slot", "fixed_shapes", "iter_slots"]


class Slot(NamedTuple):
    """A place where a tensor is kept: `table[key]`.

    Attributes:
        name: Its name in a saved state.
        table: The dictionary that holds it.
        key: Its key there.
        group: "parameter" is written in place and undone with a step; "buffer" is replaced and undone with a batch;
            "model" is written by the wrapped model's own code and never undone.
        owner: The choice it belongs to.
    """

    name: str
    table: dict[str, Any]
    key: str
    group: Literal["parameter", "buffer", "model"]
    owner: str = ""

    @property
    def tensor(self) -> Tensor | None:
        """The tensor that is there now."""
        tensor: Tensor | None = self.table.get(self.key)
        return tensor


def iter_slots(
    names: Sequence[str], networks: Mapping[str, Network], components: nn.ModuleDict, accumulated: dict[str, Tensor]
) -> Iterator[Slot]:
    """Every place where a tensor is kept that may change, each with its name.

    Args:
        names: The names of the trainable parameters.
        networks: The networks by name, "network" and perhaps "teacher" among them.
        components: The components by the choice they are.
        accumulated: The sums of gradients that wait for their step, by the number of the parameter.
    """
    model = networks["network"].model
    for name in names:
        path, _, leaf = name.rpartition(".")
        yield Slot(f"model.{name}", model.get_submodule(path)._parameters, leaf, "parameter")
    yield from _own_buffers("model", model)
    if "teacher" in networks:
        teacher = networks["teacher"].model
        for path, module in teacher.named_modules():
            for name in module._parameters:
                yield Slot(_join("teacher", path, name), module._parameters, name, "parameter")
        yield from _own_buffers("teacher", teacher)
    for choice, component in components.items():
        for path, module in component.named_modules():
            for name in module._parameters:
                yield Slot(_join(choice, path, name), module._parameters, name, "parameter", choice)
            for name in module._buffers:
                yield Slot(_join(choice, path, name), module._buffers, name, "buffer", choice)
    for prefix, network in networks.items():
        for path, module in network.hooks.named_modules():
            for name in module._buffers:
                yield Slot(_join(f"{prefix}_statistics", path, name), module._buffers, name, "buffer", prefix)
    for number, name in enumerate(names if accumulated else ()):
        yield Slot(f"accumulated.{name}", accumulated, str(number), "parameter")


def fixed_shapes(networks: Mapping[str, Network], components: nn.ModuleDict) -> dict[str, tuple[int, ...]]:
    """The shapes of buffers that never change theirs: statistics of layers, and what our components have now.

    Others come with the first images, whose shape they may have; those of a user's components may grow.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for prefix, network in networks.items():
        for index, hook in enumerate(network.hooks):
            assert isinstance(hook, BatchNormHook)
            for name in hook._buffers.keys() & {"mean", "variance"}:
                shapes[_join(f"{prefix}_statistics", str(index), name)] = (hook.layer.num_features,)
    for choice, component in components.items():
        for path, module in component.named_modules():
            if type(module).__module__.partition(".")[0] == "driftproof":
                buffers = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
                shapes |= {_join(choice, path, name): tuple(buffer.shape) for name, buffer in buffers.items()}
    return shapes


def _own_buffers(prefix: str, model: nn.Module) -> Iterator[Slot]:
    """The buffers that a model's own code may write; batch-norm statistics are constants of the source model."""
    for path, module in model.named_modules():
        if not isinstance(module, BatchNorm):
            for name in module._buffers:
                yield Slot(_join(prefix, path, name), module._buffers, name, "model", "model")


def _join(*parts: str) -> str:
    return ".".join(filter(None, parts))
