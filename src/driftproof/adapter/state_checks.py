"""What a saved state is checked for before it is loaded.

Each check raises `StateError` with the difference. A description that is not even of the expected types may raise any
error in them; `snapshot.set_state` turns that into a `StateError`.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from driftproof.adapter.slots import Slot
from driftproof.adapter.state import State
from driftproof.errors import StateError

__all__ = [
    "check_counters",
    "check_finite",
    "check_method",
    "check_optimizer",
    "check_same",
    "check_source",
    "describe_tensor",
    "find_slots",
    "is_finite",
]

_LARGEST = 2**63 - 1
Form = list[Any]
"""Shape and dtype."""


def describe_tensor(tensor: object) -> Form:
    """The shape and the dtype of a tensor, as JSON."""
    if not isinstance(tensor, Tensor):
        return [[], type(tensor).__name__]
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinite values."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool((tensor.float() if tensor.element_size() == 1 else tensor).isfinite().all())


def check_method(saved: dict[str, str], own: dict[str, str]) -> None:
    """Compare the choices of two methods."""
    pairs = [(name, saved.get(name), own.get(name)) for name in own | saved]
    different = [f"{name} was {theirs} and is {ours} here" for name, theirs, ours in pairs if theirs != ours]
    if different:
        raise StateError(f"The state was saved by another method: {'; '.join(different)}.")


def check_source(saved: dict[str, list[Any]], own: dict[str, list[Any]]) -> None:
    """Compare the fingerprints of two models."""
    forms, own_forms = ({name: form for name, (*form, _) in model.items()} for model in (saved, own))
    check_same("The state was saved for another architecture:", forms, own_forms)
    for name, (*_, total) in saved.items():
        if total != own[name][-1]:
            raise StateError(f"The state was saved for other source weights: the values of `{name}` differ.")


def check_same(problem: str, saved: Mapping[str, Form], own: Mapping[str, Form]) -> None:
    """Compare two tables of shapes and dtypes."""
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


def check_counters(counters: Mapping[str, Any], accumulate: int | str) -> None:
    """Raise unless every counter is in its range."""
    largest = {"paused": 1}
    if isinstance(accumulate, int):
        largest["accumulated_batches"] = accumulate - 1
    for name, value in counters.items():
        most = largest.get(name, _LARGEST)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise StateError(f"Expected the counter `{name}` to be 0 to {most}, but the state has {value}.")


def find_slots(state: State, saved: Mapping[str, Tensor]) -> list[Slot]:
    """The slots to write, with those of buffers that a model's own code creates while it runs.

    Parameters must be there, with their shapes. Buffers may be missing, and have another shape if none is fixed.
    """
    slots = {slot.name: slot for slot in state.slots()}
    modules = {
        f"{prefix}.{path}".rstrip("."): module
        for prefix, network in state.moving_networks.items()
        for path, module in network.model.named_modules()
    }
    given = {name: tensor for name, tensor in saved.items() if name != "meta" and not name.startswith("optimizer.")}
    for name in given:
        path, _, leaf = name.rpartition(".")
        if name not in slots and path in modules and leaf not in modules[path]._parameters:
            slots[name] = Slot(name, modules[path]._buffers, leaf, "model")
    expected: dict[str, Form] = {}
    for name, slot in slots.items():
        own = slot.tensor
        if slot.group == "parameter":
            expected |= {} if own is None else {name: describe_tensor(own)}
        elif name in given:
            shape, dtype = describe_tensor(given[name])
            fixed = state.fixed_shapes.get(name)
            is_alike = own is None or _is_same_kind(own.dtype, given[name].dtype)
            expected[name] = [shape if fixed is None else list(fixed), dtype if is_alike else describe_tensor(own)[1]]
    forms = {name: describe_tensor(tensor) for name, tensor in given.items()}
    check_same("Expected the tensors of this method, but", forms, expected)
    return list(slots.values())


def check_finite(saved: Mapping[str, Tensor], slots: list[Slot], may_be_nonfinite: Collection[str]) -> None:
    """Raise if a tensor holds NaN or infinite values that it did not hold when it was saved, or that no step leaves."""
    parameters = [slot for slot in slots if slot.group == "parameter"]
    finite = {slot.name for slot in parameters if slot.tensor is None or is_finite(slot.tensor)}
    for name, tensor in saved.items():
        must_be_finite = name not in may_be_nonfinite or name in finite or name.startswith("optimizer.state.")
        if must_be_finite and not is_finite(tensor):
            raise StateError(
                f"Expected finite values, but `{name}` of the state holds NaN or infinity. Load an earlier state."
            )


def check_optimizer(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless a saved `state_dict` has the form of an optimizer's own, as it was built.

    An optimizer that torch does not know has no state yet.
    """
    if len(saved["param_groups"]) != len(own["param_groups"]):
        raise ValueError(f"it has {len(saved['param_groups'])} parameter groups, not {len(own['param_groups'])}")
    numbers = {number for group in own["param_groups"] for number in group["params"]}
    stray = saved["state"].keys() - (own["state"].keys() or numbers)
    if stray:
        raise ValueError(f"it has a state for parameter {min(stray, key=str)}")
    for number, values in own["state"].items():
        kept = saved["state"][number]
        if values.keys() != kept.keys():
            raise ValueError(f"parameter {number} keeps {', '.join(map(str, kept))}")
        for key, value in values.items():
            _check_like(f"`{key}` of parameter {number}", value, kept[key])
    for number, (group, kept) in enumerate(zip(own["param_groups"], saved["param_groups"], strict=True)):
        for key in group.keys() & kept.keys() - {"params", "capturable", "foreach", "fused"}:
            _check_like(f"`{key}` of group {number}", group[key], kept[key])


def _check_like(name: str, own: object, saved: object) -> None:
    if isinstance(own, tuple | list) and isinstance(saved, tuple | list) and len(own) == len(saved):
        for one, other in zip(own, saved, strict=True):
            _check_like(name, one, other)
    elif isinstance(own, Tensor) and isinstance(saved, Tensor):
        if own.shape != saved.shape or not _is_same_kind(own.dtype, saved.dtype):
            raise ValueError(f"{name} is {tuple(saved.shape)} of {saved.dtype}, not {tuple(own.shape)} of {own.dtype}")
    elif _is_number(own):
        if not _is_number(saved):
            raise ValueError(f"{name} is {saved!r}, not a finite number")
    elif own is not None and type(own) is not type(saved):
        raise ValueError(f"{name} is {saved!r}, not {own!r}")


def _is_number(value: object) -> bool:
    """Whether `value` is a finite number, perhaps as a 0-d tensor."""
    if isinstance(value, Tensor):
        return value.ndim == 0 and is_finite(value)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_same_kind(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether both are floating-point, complex, boolean or integer types."""
    kinds = [(dtype.is_floating_point, dtype.is_complex, dtype == torch.bool) for dtype in (one, other)]
    return kinds[0] == kinds[1]
