"""The places where an adapter keeps tensors, enumerated once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from driftproof.network import BatchNormHook, Network
from driftproof.norms import BatchNorm

__all__ = ["Slot", "fixed_shapes", "iter_slots"]

_Group = Literal["parameter", "buffer", "model"]


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
    group: _Group
    owner: str = ""

    @property
    def tensor(self) -> Tensor | None:
        """The tensor that is there now."""
        tensor: Tensor | None = self.table.get(self.key)
        return tensor


def iter_slots(
    names: Sequence[str], networks: Mapping[str, Network], components: nn.ModuleDict, accumulated: dict[str, Tensor]
) -> Iterator[Slot]:
    """Every place where a tensor is kept that may change, each with its name; the arguments are those of a `State`."""
    model = networks["network"].model
    for name in names:
        path, _, leaf = name.rpartition(".")
        yield Slot(f"model.{name}", model.get_submodule(path)._parameters, leaf, "parameter")
    yield from _slots_in("model", model, "model", "model")
    if "teacher" in networks:
        yield from _slots_in("teacher", networks["teacher"].model, "parameter")
        yield from _slots_in("teacher", networks["teacher"].model, "model", "model")
    for choice, component in components.items():
        yield from _slots_in(choice, component, "parameter", choice)
        yield from _slots_in(choice, component, "buffer", choice)
    for prefix, network in networks.items():
        yield from _slots_in(f"{prefix}_statistics", network.hooks, "buffer", prefix)
    for number, name in enumerate(names if accumulated else ()):
        yield Slot(f"accumulated.{name}", accumulated, str(number), "parameter")


def _slots_in(prefix: str, root: nn.Module, group: _Group, owner: str = "") -> Iterator[Slot]:
    """The parameters or buffers of a module and all in it, but for batch-norm statistics of the source model."""
    for path, module in root.named_modules():
        table: dict[str, Any] = module._parameters if group == "parameter" else module._buffers
        if group != "model" or not isinstance(module, BatchNorm):
            for name in table:
                yield Slot(_join(prefix, path, name), table, name, group, owner)


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


def _join(*parts: str) -> str:
    return ".".join(filter(None, parts))
