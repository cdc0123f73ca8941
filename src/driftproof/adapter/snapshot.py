"""An adapter's state as a dictionary of tensors.

One of the tensors, `meta`, holds JSON: the format, the method as text, the fingerprint of the source model, the
counters, what the optimizer keeps besides tensors, the shape and dtype of every tensor, which tensors hold NaN or
infinite values, and a digest of all this. A state is checked whole before anything of the adapter changes.
"""

import hashlib
import json
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from driftproof.adapter.method import Method
from driftproof.adapter.networks import restore_buffers
from driftproof.adapter.slots import Slot
from driftproof.adapter.state import COUNTERS, State
from driftproof.adapter.state_checks import (
    check_counters,
    check_finite,
    check_method,
    check_optimizer,
    check_same,
    check_source,
    describe_tensor,
    find_slots,
    is_finite,
)
from driftproof.errors import StateError
from driftproof.optimizers import load_optimizer_state

__all__ = ["checksum", "digest", "fingerprint", "get_state", "read_meta", "set_state"]

_FORMAT = 4
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_DAMAGED = "Expected a state saved by driftproof, but its description is damaged. Load an earlier state."
_ERRORS = (AttributeError, IndexError, KeyError, RecursionError, RuntimeError, TypeError, ValueError)
"""What reading a description raises that is not what was written."""


def get_state(method: Method, state: State) -> dict[str, Tensor]:
    """Copy the state as it is now."""
    tensors = {slot.name: tensor for slot in state.slots() if (tensor := slot.tensor) is not None}
    optimizer = None if state.optimizer is None else _encode(state.optimizer.state_dict(), "optimizer", tensors)
    meta = {
        "format": _FORMAT,
        "method": method.describe(),
        "source": fingerprint(state.source.model),
        "seed": state.seed,
        "counters": {name: int(getattr(state, name)) for name in COUNTERS},
        "guard_counters": state.guard_counters,
        "optimizer": optimizer,
        "tensors": {name: describe_tensor(tensor) for name, tensor in tensors.items()},
        "nonfinite": [name for name, tensor in tensors.items() if not is_finite(tensor)],
    }
    meta["digest"] = digest(meta)
    copies = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    return copies | {"meta": torch.frombuffer(bytearray(json.dumps(meta).encode()), dtype=torch.uint8)}


@torch.inference_mode(mode=False)
def set_state(method: Method, state: State, saved: Mapping[str, Tensor]) -> None:
    """Check that `saved` belongs to the adapter, then load it; a refused state changes nothing."""
    meta = read_meta(saved)
    try:
        check_method(meta["method"], method.describe())
        check_source(meta["source"], fingerprint(state.source.model))
        given = {name: describe_tensor(tensor) for name, tensor in saved.items() if name != "meta"}
        check_same("Expected the tensors that were saved, but", given, meta["tensors"])
        counters, guard_counters = meta["counters"], {**meta["guard_counters"]}
        check_counters({name: counters.get(name) for name in COUNTERS} | guard_counters, method.accumulate)
        slots = find_slots(state, saved)
        check_finite(saved, slots, may_be_nonfinite=meta["nonfinite"])
        seed, optimizer = operator.index(meta["seed"]), _decode_optimizer(state, meta["optimizer"], saved)
    except StateError:
        raise
    except _ERRORS as error:
        raise StateError(_DAMAGED) from error
    with torch.no_grad():
        for network in state.moving_networks.values():
            restore_buffers(network.model, state.source.model)
        for slot in slots:
            _put(slot, saved.get(slot.name), state.device)
        for name in COUNTERS:
            getattr(state, name).fill_(counters[name])
    state.guard_counters, state.seed, state.optimizer = guard_counters, seed, optimizer
    state.drop_storage()


def read_meta(saved: Mapping[str, Tensor]) -> dict[str, Any]:
    """The description of a state, as it was when the state was saved."""
    if "meta" not in saved:
        raise StateError("Expected a state saved by driftproof, but its description is missing.")
    try:
        if saved["meta"].ndim != 1 or saved["meta"].dtype != torch.uint8:
            raise ValueError("not a text")
        meta: dict[str, Any] = json.loads(bytes(saved["meta"].tolist()))
        form, is_whole = meta["format"], meta.pop("digest") == digest(meta)
    except _ERRORS as error:
        raise StateError(_DAMAGED) from error
    if form != _FORMAT:
        raise StateError(f"Expected a state of format {_FORMAT}, but got format {form}. Load it with its own version.")
    if not is_whole:
        raise StateError(_DAMAGED)
    return meta


def fingerprint(model: nn.Module) -> dict[str, list[Any]]:
    """Shape, dtype and checksum of every tensor of a model.

    Integer sums are exact in any order, so the same weights give the same fingerprint on every device.
    """
    tensors = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    return {name: [*describe_tensor(tensor), checksum(tensor)] for name, tensor in tensors.items()}


def checksum(tensor: Tensor) -> int:
    """The sum of all bit patterns of a tensor."""
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    flat = real.contiguous().reshape(-1)
    return int(flat.view(_INTEGER_OF_SIZE[flat.element_size()]).sum(dtype=torch.int64))


def digest(content: object) -> int:
    """A positive 63-bit number that hardly any other content shares."""
    text = json.dumps(content, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _put(slot: Slot, value: Tensor | None, device: torch.device) -> None:
    own = slot.tensor
    if value is not None and own is not None and own.shape == value.shape:
        own.copy_(value)
    elif value is not None:
        slot.table[slot.key] = value.to(device).clone()
    elif slot.group == "buffer":
        slot.table[slot.key] = None


# --- the optimizer ----------------------------------------------------------------------------------------------------


def _decode_optimizer(state: State, encoded: object, saved: Mapping[str, Tensor]) -> torch.optim.Optimizer | None:
    """A new optimizer with the saved state."""
    if state.optimizer is None:
        return None
    optimizer = state.make_optimizer()
    try:
        decoded = _decode(encoded, saved)
        check_optimizer(optimizer.state_dict(), decoded)
        load_optimizer_state(optimizer, decoded)
    except _ERRORS as error:
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
        kind = "tuple" if type(value) is tuple else "list"
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
