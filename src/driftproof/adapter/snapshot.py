"""An adapter's state as a dictionary of tensors.

One of the tensors, `meta`, holds JSON: the format, the method as text, the fingerprint of the source model, what the
optimizer keeps besides tensors, the shape and dtype of every tensor, which tensors hold NaN or infinite values, and a
digest of all this. A state is checked whole before anything of the adapter changes.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from driftproof.adapter.copies import restore_buffers
from driftproof.adapter.method import Method
from driftproof.adapter.optimizers import build_optimizer, load_optimizer_state
from driftproof.adapter.slots import Slot
from driftproof.adapter.state import State
from driftproof.adapter.state_checks import (
    check_counters,
    check_description,
    check_optimizer,
    is_finite,
    same_kind,
)
from driftproof.errors import StateError

__all__ = ["checksum", "digest", "fingerprint", "get_state", "read_meta", "set_state"]

_FORMAT = 4
_KNOWN_FORMATS = (3, 4)
"""Format 3 does not say which tensors hold NaN or infinite values."""
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_COUNTERS = ("index", "num_steps", "accumulated_batches", "paused")


def get_state(method: Method, state: State) -> dict[str, Tensor]:
    """Copy the state as it is now."""
    tensors = {slot.name: tensor for slot in state.slots() if (tensor := slot.tensor) is not None}
    optimizer = None if state.optimizer is None else _encode(state.optimizer.state_dict(), "optimizer", tensors)
    meta = {
        "format": _FORMAT,
        "method": method.describe(),
        "source": fingerprint(state.source.model),
        "seed": state.seed,
        "counters": {name: int(getattr(state, name)) for name in _COUNTERS},
        "guard_counters": state.guard_counters,
        "optimizer": optimizer,
        "tensors": {name: _describe_tensor(tensor) for name, tensor in tensors.items()},
        "nonfinite": [name for name, tensor in tensors.items() if not is_finite(tensor)],
    }
    meta["digest"] = digest(meta)
    copies = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    return copies | {"meta": torch.frombuffer(bytearray(json.dumps(meta).encode()), dtype=torch.uint8)}


@torch.inference_mode(mode=False)
def set_state(method: Method, state: State, saved: Mapping[str, Tensor]) -> None:
    """Check that `saved` belongs to the adapter, then load it; a refused state changes nothing."""
    meta = read_meta(saved)
    _check_method(meta["method"], method.describe())
    _check_source(meta["source"], fingerprint(state.source.model))
    given = {name: _describe_tensor(tensor) for name, tensor in saved.items() if name != "meta"}
    _check_same("Expected the tensors that were saved, but", given, meta["tensors"])
    check_counters(meta, _COUNTERS, method.accumulate)
    slots = _find_slots(state, saved)
    _check_finite(meta, saved, slots)
    optimizer = _decode_optimizer(method, state, meta["optimizer"], saved)
    with torch.no_grad():
        restore_buffers(state.network.model, state.source.model)
        if state.teacher is not None:
            restore_buffers(state.teacher.model, state.source.model)
        for slot in slots:
            _put(slot, saved.get(slot.name), state.device)
        for name in _COUNTERS:
            getattr(state, name).fill_(meta["counters"][name])
    state.guard_counters = dict(meta["guard_counters"])
    state.seed = meta["seed"]
    state.optimizer = optimizer
    state.drop_storage()


def read_meta(saved: Mapping[str, Tensor]) -> dict[str, Any]:
    """The description of a state, as it was when the state was saved."""
    if "meta" not in saved:
        raise StateError("Expected a state saved by driftproof, but its description is missing.")
    try:
        if saved["meta"].ndim != 1 or saved["meta"].dtype != torch.uint8:
            raise ValueError("not a text")
        meta: dict[str, Any] = json.loads(bytes(saved["meta"].tolist()))
        form, expected = meta["format"], meta.pop("digest", None)
        actual = digest(meta)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise StateError(
            "Expected a state saved by driftproof, but its description is damaged. Load an earlier state."
        ) from error
    if form not in _KNOWN_FORMATS or not isinstance(form, int):
        raise StateError(f"Expected a state of format {_FORMAT}, but got format {form}. Load it with its own version.")
    if actual != expected:
        raise StateError("Expected a state saved by driftproof, but its description is damaged. Load an earlier state.")
    check_description(meta)
    return meta


def fingerprint(model: nn.Module) -> dict[str, list[Any]]:
    """Shape, dtype and checksum of every tensor of a model.

    Integer sums are exact in any order, so the same weights give the same fingerprint on every device.
    """
    tensors = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    return {name: [*_describe_tensor(tensor), checksum(tensor)] for name, tensor in tensors.items()}


def checksum(tensor: Tensor) -> int:
    """The sum of all bit patterns of a tensor."""
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    flat = real.contiguous().reshape(-1)
    return int(flat.view(_INTEGER_OF_SIZE[flat.element_size()]).sum(dtype=torch.int64))


def digest(content: object) -> int:
    """A positive 63-bit number that hardly any other content shares."""
    text = json.dumps(content, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


# --- checks -----------------------------------------------------------------------------------------------------------


def _describe_tensor(tensor: object) -> list[Any]:
    if not isinstance(tensor, Tensor):
        return [[], type(tensor).__name__]
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]


def _check_method(saved: dict[str, str], own: dict[str, str]) -> None:
    names = [*own, *(name for name in saved if name not in own)]
    pairs = [(name, saved.get(name), own.get(name)) for name in names]
    different = [f"{name} was {theirs} and is {ours} here" for name, theirs, ours in pairs if theirs != ours]
    if different:
        raise StateError(f"The state was saved by another method: {'; '.join(different)}.")


def _check_source(saved: dict[str, list[Any]], own: dict[str, list[Any]]) -> None:
    forms, own_forms = ({name: form for name, (*form, _) in model.items()} for model in (saved, own))
    _check_same("The state was saved for another architecture:", forms, own_forms)
    for name, (*_, total) in saved.items():
        if total != own[name][-1]:
            raise StateError(f"The state was saved for other source weights: the values of `{name}` differ.")


def _find_slots(state: State, saved: Mapping[str, Tensor]) -> list[Slot]:
    """The slots to write, with those of buffers that a model's own code creates while it runs."""
    slots = {slot.name: slot for slot in state.slots()}
    modules = {f"model.{path}".rstrip("."): module for path, module in state.network.model.named_modules()}
    if state.teacher is not None:
        modules |= {f"teacher.{path}".rstrip("."): module for path, module in state.teacher.model.named_modules()}
    names = [name for name in saved if name != "meta" and not name.startswith("optimizer.")]
    for name in names:
        path, _, leaf = name.rpartition(".")
        if name not in slots and path in modules and leaf not in modules[path]._parameters:
            slots[name] = Slot(name, modules[path]._buffers, leaf, "model")
    for name in names:
        own = slots[name].tensor if name in slots else None
        if own is not None and not same_kind(own.dtype, saved[name].dtype):
            raise StateError(
                f"Expected the tensors of this method, but `{name}` was of {_describe_tensor(saved[name])[1]} and is "
                f"of {_describe_tensor(own)[1]} here."
            )
    for name, shape in state.fixed_shapes().items():
        if name in names and tuple(saved[name].shape) != shape:
            raise StateError(
                f"Expected the tensors of this method, but `{name}` was {tuple(saved[name].shape)} and is {shape} here."
            )
    fixed = {name: slot.tensor for name, slot in slots.items() if slot.group == "parameter"}
    _check_same(
        "Expected the tensors of this method, but",
        {name: _describe_tensor(saved[name]) for name in names if name in fixed or name not in slots},
        {name: _describe_tensor(tensor) for name, tensor in fixed.items() if tensor is not None},
    )
    return list(slots.values())


def _check_finite(meta: Mapping[str, Any], saved: Mapping[str, Tensor], slots: list[Slot]) -> None:
    """Raise if a tensor holds NaN or infinite values that it did not hold when it was saved, or that no step leaves."""
    expected = set(meta.get("nonfinite", saved))
    finite = {slot.name for slot in slots if slot.group == "parameter" and _is_finite_here(slot)}
    for name, tensor in saved.items():
        must_be_finite = name not in expected or name in finite or name.startswith("optimizer.state.")
        if must_be_finite and not is_finite(tensor):
            raise StateError(
                f"Expected finite values, but `{name}` of the state holds NaN or infinity. Load an earlier state."
            )


def _is_finite_here(slot: Slot) -> bool:
    return slot.tensor is None or is_finite(slot.tensor)


def _check_same(problem: str, saved: Mapping[str, list[Any]], own: Mapping[str, list[Any]]) -> None:
    """Raise unless two tables of shapes and dtypes are the same."""
    unknown, missing = [name for name in saved if name not in own], [name for name in own if name not in saved]
    differences = []
    if unknown:
        differences.append(f"it has {', '.join(unknown[:3])}{' and more' if len(unknown) > 3 else ''}, unknown here")
    if missing:
        differences.append(f"it lacks {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}")
    for name, (shape, dtype) in saved.items():
        own_shape, own_dtype = own.get(name, (shape, dtype))
        if (shape, dtype) != (own_shape, own_dtype):
            differences.append(f"`{name}` was {tuple(shape)} of {dtype} and is {tuple(own_shape)} of {own_dtype} here")
    if differences:
        raise StateError(f"{problem} {'; '.join(differences[:3])}.")


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
    """A new optimizer with the saved state."""
    if state.optimizer is None:
        return None
    optimizer = build_optimizer(method, state.trainable, capturable=state.capturable)
    try:
        decoded = _decode(encoded, saved)
        check_optimizer(optimizer.state_dict(), decoded)
        load_optimizer_state(optimizer, decoded)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
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
        return tensors[content].clone()
    if kind == "dict":
        return {key: _decode(item, tensors) for key, item in content}
    items = [_decode(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
