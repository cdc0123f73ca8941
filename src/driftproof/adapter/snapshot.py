"""An adapter's state: what has changed since the start, named, complete and checked before it is believed.

A state is a flat dictionary of tensors. One of them, `meta`, holds JSON: the method in words, the fingerprint of the
source model, and what the optimizer keeps besides tensors.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from driftproof.adapter.copies import restore_buffers
from driftproof.adapter.sentence import described
from driftproof.errors import StateError
from driftproof.files import atomic_write
from driftproof.network import Network
from driftproof.norms import BatchNorm

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["bit_sum", "capture", "read", "restore", "write"]

_FORMAT = 1
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Slot(NamedTuple):
    """A place in a module where a tensor is kept."""

    module: nn.Module
    name: str
    is_parameter: bool

    @property
    def tensor(self) -> Tensor | None:
        table = self.module._parameters if self.is_parameter else self.module._buffers
        return table.get(self.name)

    def put(self, tensor: Tensor | None) -> None:
        if self.is_parameter:
            assert tensor is not None
            with torch.no_grad():
                self.module._parameters[self.name].copy_(tensor)  # type: ignore[union-attr]
        else:
            self.module._buffers[self.name] = tensor


def capture(adapter: "Adapter") -> dict[str, Tensor]:
    """The state as it is now, in copies."""
    tensors = {key: tensor for key, slot in _slots(adapter).items() if (tensor := slot.tensor) is not None}
    loose: dict[str, Tensor] = {}
    steps = _encoded(adapter._stepper.state_dict(), "steps", loose) if adapter._names else None
    meta = {
        "format": _FORMAT,
        "method": described(adapter),
        "source": fingerprint(adapter.source.model),
        "seed": adapter.seed,
        "index": adapter._index,
        "steps": steps,
    }
    state = {key: tensor.detach().clone().contiguous() for key, tensor in (tensors | loose).items()}
    return state | {"meta": torch.frombuffer(bytearray(json.dumps(meta).encode()), dtype=torch.uint8)}


def restore(adapter: "Adapter", state: Mapping[str, Tensor]) -> None:
    """Check that `state` belongs to `adapter`, then put it in place; a refused state changes nothing."""
    meta = _meta(state)
    _refuse_other_method(meta["method"], described(adapter))
    _refuse_other_model(meta["source"], fingerprint(adapter.source.model))
    models = dict(_models(adapter))
    slots = _slots(adapter) | _later_buffers(models, state)
    free = {id(module) for model in models.values() for module in model.modules()}
    names = [key for key in state if key.split(".")[0] not in ("meta", "steps")]
    unknown = [key for key in names if key not in slots]
    missing = [key for key, slot in slots.items() if slot.is_parameter and key not in state]
    if unknown or missing:
        raise StateError(f"Expected the tensors of this method, but {_differing(unknown, missing)}.")
    for key in names:
        own, fixed = slots[key].tensor, slots[key].is_parameter or id(slots[key].module) not in free
        if own is not None and fixed and own.shape != state[key].shape:
            raise StateError(f"Expected {key} to be of shape {tuple(own.shape)}, but got {tuple(state[key].shape)}.")
    with torch.inference_mode(False), torch.no_grad():
        _begin_steps(adapter, _decoded(meta["steps"], state))
        for model in models.values():
            restore_buffers(model, adapter.source.model)
        for key, slot in slots.items():
            if key in state:
                slot.put(state[key].to(adapter.device).clone())
            elif slot.name in slot.module._buffers:
                slot.put(None)
    adapter.seed = meta["seed"]
    adapter._index = meta["index"]
    adapter._last = None
    adapter._engine.drop()


def write(state: dict[str, Tensor], path: Path) -> None:
    """Write a state next to its destination, then move it there in one act."""
    with atomic_write(path) as unfinished:
        # The library's own writer keeps other users out of the file; bytes written here follow the folder's habits.
        unfinished.write_bytes(save(state, metadata={"format": f"driftproof state {_FORMAT}"}))


def read(path: Path, device: torch.device) -> dict[str, Tensor]:
    """Read a state; a damaged file is refused."""
    if path.is_dir():
        raise StateError(f"Expected {path} to be a saved state, but it is a folder.")
    try:
        return load_file(path, device=str(device))
    except (SafetensorError, ValueError, KeyError) as error:
        raise StateError(
            f"Expected {path} to be a saved state, but it is damaged or something else: {error}."
        ) from error


def fingerprint(model: nn.Module) -> dict[str, list[Any]]:
    """Shape, type and the sum of all bit patterns of every tensor of a model; what else it may state is left out.

    Sums of integers are exact in any order, so the same weights give the same fingerprint on every device.
    """
    return {
        name: [list(tensor.shape), str(tensor.dtype).removeprefix("torch."), bit_sum(tensor)]
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor)
    }


def bit_sum(tensor: Tensor) -> int:
    """The sum of all bit patterns of a tensor."""
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    flat = real.contiguous().reshape(-1)
    return int(flat.view(_INTEGER_OF_SIZE[flat.element_size()]).sum(dtype=torch.int64))


def _slots(adapter: "Adapter") -> dict[str, _Slot]:
    model = adapter.network.model
    slots = {}
    for name in adapter._names:
        path, _, leaf = name.rpartition(".")
        slots[f"model.{name}"] = _Slot(model.get_submodule(path), leaf, is_parameter=True)
    for path, module in model.named_modules():
        # The statistics of a batch norm are constants of the source model; other buffers are the user's to change.
        if not isinstance(module, BatchNorm):
            slots |= {f"model.{path}.{name}": _Slot(module, name, is_parameter=False) for name in module._buffers}
    for axis, part in _parts(adapter).items():
        slots |= dict(_inside(axis, part))
    return slots


def _parts(adapter: "Adapter") -> dict[str, nn.Module]:
    parts = {
        "statistics": adapter.statistics,
        "source_statistics": adapter.source_statistics,
        "loss": adapter.loss,
        "select": adapter.select,
        "regularizer": adapter.regularizer,
        "network": adapter.network.rules,
        "source": adapter.source.rules,
    }
    return {axis: part for axis, part in parts.items() if part is not None}


def _models(adapter: "Adapter") -> Iterator[tuple[str, nn.Module]]:
    """The copies of the user's model that learn: what their own code keeps in buffers is theirs to change."""
    yield "model", adapter.network.model
    for axis, part in _parts(adapter).items():
        for path, module in part.named_modules():
            if isinstance(module, Network):
                yield f"{axis}.{path}.model", module.model


def _later_buffers(models: Mapping[str, nn.Module], state: Mapping[str, Tensor]) -> dict[str, _Slot]:
    """Places for buffers that a model's own code made while it ran, where this one has not run yet."""
    slots: dict[str, _Slot] = {}
    for prefix, model in models.items():
        for path, module in model.named_modules():
            # The modules of a part are named as torch does it, without a dot for the root.
            start = f"{prefix}.{path}." if path or prefix == "model" else f"{prefix}."
            names = [key.removeprefix(start) for key in state if key.startswith(start)]
            made = [name for name in names if "." not in name and name not in module._parameters]
            slots |= {start + name: _Slot(module, name, is_parameter=False) for name in made}
    return slots


def _begin_steps(adapter: "Adapter", steps: dict[str, Any] | None) -> None:
    try:
        adapter._begin_steps(steps)
    except ValueError as error:
        raise StateError(f"The state was saved by another method: its optimizer does not fit, {error}.") from error


def _inside(axis: str, root: nn.Module) -> Iterator[tuple[str, _Slot]]:
    for path, module in root.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield f"{axis}.{path}.{name}", _Slot(module, name, is_parameter=True)
        for name in module._buffers:
            yield f"{axis}.{path}.{name}", _Slot(module, name, is_parameter=False)


def _meta(state: Mapping[str, Tensor]) -> dict[str, Any]:
    if "meta" not in state:
        raise StateError("Expected a state saved by driftproof, but its description is missing.")
    try:
        meta: dict[str, Any] = json.loads(bytes(state["meta"].tolist()))
        form = meta["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise StateError("Expected a state saved by driftproof, but its description is damaged.") from error
    if form != _FORMAT:
        raise StateError(f"Expected a state of format {_FORMAT}, but got format {form}.")
    return meta


def _refuse_other_method(saved: dict[str, str], own: dict[str, str]) -> None:
    different = [
        f"{axis} was {saved.get(axis)} and is {own[axis]} here" for axis in own if saved.get(axis) != own[axis]
    ]
    if different:
        raise StateError(f"The state was saved by another method: {'; '.join(different)}.")


def _refuse_other_model(saved: dict[str, list[Any]], own: dict[str, list[Any]]) -> None:
    if saved.keys() != own.keys():
        unknown, missing = [name for name in saved if name not in own], [name for name in own if name not in saved]
        raise StateError(f"The state was saved for another architecture: {_differing(unknown, missing)}.")
    for name, (shape, kind, bits) in saved.items():
        own_shape, own_kind, own_bits = own[name]
        if (shape, kind) != (own_shape, own_kind):
            raise StateError(
                f"The state was saved for another architecture: `{name}` was {tuple(shape)} of {kind} and is "
                f"{tuple(own_shape)} of {own_kind} here."
            )
        if bits != own_bits:
            raise StateError(f"The state was saved for other source weights: the values of `{name}` differ.")


def _differing(unknown: list[str], missing: list[str]) -> str:
    parts = []
    if unknown:
        parts.append(f"it has {', '.join(unknown[:3])}{' and more' if len(unknown) > 3 else ''}, unknown here")
    if missing:
        parts.append(f"it lacks {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}")
    return "; ".join(parts)


def _encoded(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:  # noqa: ANN401  # JSON has no static type
    """`value` as JSON, with its tensors put aside under names."""
    if isinstance(value, Tensor):
        tensors[key] = value
        return {"tensor": key}
    if isinstance(value, dict):
        return {"dict": [[name, _encoded(item, f"{key}.{name}", tensors)] for name, item in value.items()]}
    if isinstance(value, list | tuple):
        kind = type(value).__name__
        return {kind: [_encoded(item, f"{key}.{index}", tensors) for index, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise StateError(f"The optimizer keeps a {type(value).__name__} at {key}, which cannot be saved.")


def _decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:  # noqa: ANN401  # JSON has no static type
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        if content not in tensors:
            raise StateError(f"Expected the tensors of this method, but {_differing([], [content])}.")
        return tensors[content].clone()
    if kind == "dict":
        return {name: _decoded(item, tensors) for name, item in content}
    items = [_decoded(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
