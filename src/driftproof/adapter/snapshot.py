"""Saving and loading an adapter's state.

A saved state is a flat dictionary of tensors. One of them, `meta`, holds JSON: the format, the method as text, the
fingerprint of the source model, and what the optimizer keeps besides tensors. A state is checked whole before anything
of the adapter changes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from driftproof.adapter.copies import restore_buffers
from driftproof.adapter.method import Method
from driftproof.adapter.optimizers import build_optimizer, check_optimizer_state, load_optimizer_state
from driftproof.adapter.state import State
from driftproof.adapter.storage import Slot
from driftproof.errors import StateError
from driftproof.files import atomic_write

__all__ = ["checksum", "fingerprint", "get_state", "read", "set_state", "write"]

_FORMAT = 2
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MALFORMED = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
_COUNTERS = ("index", "num_steps", "accumulated_batches")


def get_state(method: Method, state: State) -> dict[str, Tensor]:
    """Copy the state as it is now."""
    tensors = {slot.name: tensor for slot in state.slots() if (tensor := slot.tensor) is not None}
    loose: dict[str, Tensor] = {}
    optimizer = None if state.optimizer is None else _encode(state.optimizer.state_dict(), "optimizer", loose)
    meta = {
        "format": _FORMAT,
        "method": method.describe(),
        "source": fingerprint(state.source.model),
        "seed": state.seed,
        "counters": {name: int(getattr(state, name)) for name in _COUNTERS},
        "optimizer": optimizer,
        "tensors": [*tensors, *loose],
    }
    copies = {name: tensor.detach().clone().contiguous() for name, tensor in (tensors | loose).items()}
    return copies | {"meta": torch.frombuffer(bytearray(json.dumps(meta).encode()), dtype=torch.uint8)}


@torch.inference_mode(mode=False)
def set_state(method: Method, state: State, saved: Mapping[str, Tensor]) -> None:
    """Check that `saved` belongs to the adapter, then load it; a refused state changes nothing."""
    meta = _read_meta(saved)
    try:
        _check_method(meta["method"], method.describe())
        _check_source(meta["source"], fingerprint(state.source.model))
        _check_names([name for name in saved if name != "meta"], meta["tensors"])
        counters = {name: _check_count(meta["counters"][name]) for name in _COUNTERS}
        if counters["accumulated_batches"] >= method.accumulate:
            raise ValueError(f"{counters['accumulated_batches']} batches wait for their step")
        seed = _check_integer(meta["seed"])
        slots = _check_tensors(state, saved)
        optimizer = _decode_optimizer(method, state, meta["optimizer"], saved)
    except StateError:
        raise
    except _MALFORMED as error:
        raise StateError(f"Expected a state saved by driftproof, but its description is damaged: {error}.") from error
    with torch.no_grad():
        restore_buffers(state.network.model, state.source.model)
        if state.teacher is not None:
            restore_buffers(state.teacher.model, state.source.model)
        for slot in slots:
            _put(slot, saved.get(slot.name), state.device)
        for name, count in counters.items():
            getattr(state, name).fill_(count)
    state.seed = seed
    state.replace_optimizer(optimizer)


def write(saved: dict[str, Tensor], path: Path) -> None:
    """Write a state beside its destination, then move it there atomically."""
    with atomic_write(path) as unfinished:
        # The library's own writer sets the file's mode; bytes written here follow the folder's defaults.
        unfinished.write_bytes(save(saved, metadata={"format": f"driftproof state {_FORMAT}"}))


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
    """Shape, dtype and checksum of every tensor of a model.

    Integer sums are exact in any order, so the same weights give the same fingerprint on every device.
    """
    return {
        name: [list(tensor.shape), str(tensor.dtype).removeprefix("torch."), checksum(tensor)]
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor)
    }


def checksum(tensor: Tensor) -> int:
    """The sum of all bit patterns of a tensor."""
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    flat = real.contiguous().reshape(-1)
    return int(flat.view(_INTEGER_OF_SIZE[flat.element_size()]).sum(dtype=torch.int64))


# --- checks -----------------------------------------------------------------------------------------------------------


def _read_meta(saved: Mapping[str, Tensor]) -> dict[str, Any]:
    if "meta" not in saved:
        raise StateError("Expected a state saved by driftproof, but its description is missing.")
    try:
        meta: dict[str, Any] = json.loads(bytes(saved["meta"].tolist()))
        form = meta["format"]
    except _MALFORMED as error:
        raise StateError("Expected a state saved by driftproof, but its description is damaged.") from error
    if form != _FORMAT:
        raise StateError(f"Expected a state of format {_FORMAT}, but got format {form}.")
    return meta


def _check_method(saved: dict[str, str], own: dict[str, str]) -> None:
    names = [*own, *(name for name in saved if name not in own)]
    pairs = [(name, saved.get(name), own.get(name)) for name in names]
    different = [f"{name} was {theirs} and is {ours} here" for name, theirs, ours in pairs if theirs != ours]
    if different:
        raise StateError(f"The state was saved by another method: {'; '.join(different)}.")


def _check_source(saved: dict[str, list[Any]], own: dict[str, list[Any]]) -> None:
    if saved.keys() != own.keys():
        unknown, missing = [name for name in saved if name not in own], [name for name in own if name not in saved]
        raise StateError(f"The state was saved for another architecture: {_describe_key_mismatch(unknown, missing)}.")
    for name, (shape, dtype, total) in saved.items():
        own_shape, own_dtype, own_total = own[name]
        if (shape, dtype) != (own_shape, own_dtype):
            raise StateError(
                f"The state was saved for another architecture: `{name}` was {tuple(shape)} of {dtype} and is "
                f"{tuple(own_shape)} of {own_dtype} here."
            )
        if total != own_total:
            raise StateError(f"The state was saved for other source weights: the values of `{name}` differ.")


def _check_tensors(state: State, saved: Mapping[str, Tensor]) -> list[Slot]:
    """Check names, shapes and kinds of all tensors; returns the slots to write, those of later buffers included."""
    slots = {slot.name: slot for slot in state.slots()}
    slots |= _lazy_buffers(state, saved, known=slots)
    names = [name for name in saved if name != "meta" and not name.startswith("optimizer.")]
    unknown = [name for name in names if name not in slots]
    missing = [name for name, slot in slots.items() if slot.group == "parameter" and slot.tensor is not None]
    missing = [name for name in missing if name not in saved]
    if unknown or missing:
        raise StateError(f"Expected the tensors of this method, but {_describe_key_mismatch(unknown, missing)}.")
    for name in names:
        own, slot = slots[name].tensor, slots[name]
        if own is None:
            continue
        if slot.group != "model" and own.shape != saved[name].shape:
            raise StateError(f"Expected {name} to be of shape {tuple(own.shape)}, but got {tuple(saved[name].shape)}.")
        if own.is_floating_point() != saved[name].is_floating_point() or own.is_complex() != saved[name].is_complex():
            raise StateError(f"Expected {name} to be of {own.dtype}, but got {saved[name].dtype}.")
    return list(slots.values())


def _lazy_buffers(state: State, saved: Mapping[str, Tensor], known: Mapping[str, Slot]) -> dict[str, Slot]:
    """Slots for buffers that a model's own code created while it ran, where this one has not run yet."""
    slots: dict[str, Slot] = {}
    models = {"model": state.network.model} | ({} if state.teacher is None else {"teacher": state.teacher.model})
    for prefix, model in models.items():
        for path, module in model.named_modules():
            start = f"{prefix}.{path}." if path else f"{prefix}."
            for name in (key.removeprefix(start) for key in saved if key.startswith(start) and key not in known):
                if "." not in name and name not in module._parameters:
                    slots[start + name] = Slot(start + name, module._buffers, name, "model")
    return slots


def _check_names(names: list[str], expected: list[str]) -> None:
    """Check that no tensor was lost or added since the state was saved."""
    unknown, missing = (
        [name for name in names if name not in expected],
        [name for name in expected if name not in names],
    )
    if unknown or missing:
        raise StateError(f"Expected the tensors of this method, but {_describe_key_mismatch(unknown, missing)}.")


def _check_count(value: object) -> int:
    count = _check_integer(value)
    if not 0 <= count < 2**63:
        raise ValueError(f"a counter is {count}")
    return count


def _check_integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"a whole number is {value!r}")
    return value


def _describe_key_mismatch(unknown: list[str], missing: list[str]) -> str:
    parts = []
    if unknown:
        parts.append(f"it has {', '.join(unknown[:3])}{' and more' if len(unknown) > 3 else ''}, unknown here")
    if missing:
        parts.append(f"it lacks {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}")
    return "; ".join(parts)


def _put(slot: Slot, value: Tensor | None, device: torch.device) -> None:
    own = slot.tensor
    if value is not None and own is not None and own.shape == value.shape:
        own.copy_(value)
    elif value is not None:
        slot.table[slot.key] = value.to(device).clone()
    elif slot.group == "buffer":
        slot.table[slot.key] = None


# --- the optimizer ----------------------------------------------------------------------------------------------------


def _decode_optimizer(
    method: Method, state: State, encoded: object, saved: Mapping[str, Tensor]
) -> torch.optim.Optimizer | None:
    """A new optimizer with the saved state, checked against one that was just built."""
    if state.optimizer is None:
        if encoded is not None:
            raise StateError("The state was saved by another method: it has an optimizer, and nothing trains here.")
        return None
    optimizer = build_optimizer(method, state.trainable, capturable=state.capturable)
    try:
        decoded = _decode(encoded, saved)
        used: dict[str, Tensor] = {}
        _encode(decoded, "optimizer", used)
        _check_names([name for name in saved if name.startswith("optimizer.")], list(used))
        check_optimizer_state(optimizer, decoded)
        load_optimizer_state(optimizer, decoded)
    except StateError:
        raise
    except _MALFORMED as error:
        raise StateError(f"The state was saved by another method: its optimizer does not fit, {error}.") from error
    return optimizer


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:  # noqa: ANN401  # JSON has no static type
    """`value` as JSON; its tensors are put into `tensors` by name."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _encode(item, f"{name}.{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        kind = type(value).__name__ if type(value) in (list, tuple) else "list"
        return {kind: [_encode(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise StateError(f"The optimizer keeps a {type(value).__name__} at {name}, which cannot be saved.")


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:  # noqa: ANN401  # JSON has no static type
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        if content not in tensors:
            raise StateError(f"Expected the tensors of this method, but {_describe_key_mismatch([], [content])}.")
        return tensors[content].clone()
    if kind == "dict":
        return {key: _decode(item, tensors) for key, item in content}
    items = [_decode(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
