"""Checks of a saved state before it is loaded: its description, its values, its counters, its optimizer."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from driftproof.errors import StateError

__all__ = ["check_counters", "check_description", "check_optimizer", "is_finite", "same_kind"]

_LARGEST = 2**63 - 1


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinite values."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool((tensor.float() if tensor.element_size() == 1 else tensor).isfinite().all())


def same_kind(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether both are floating-point, complex, boolean or integer types."""
    return _kind(one) == _kind(other)


def _kind(dtype: torch.dtype) -> tuple[bool, bool, bool]:
    return dtype.is_floating_point, dtype.is_complex, dtype == torch.bool


def check_description(meta: Mapping[str, Any]) -> None:
    """Raise unless the parts of a description have the types they are written with."""
    is_sound = (
        _is_table(meta.get("method"), lambda value: isinstance(value, str))
        and _is_table(meta.get("source"), lambda value: _is_form(value[:-1]) and _is_integer(value[-1]))
        and _is_table(meta.get("tensors"), _is_form)
        and _is_table(meta.get("counters"), _is_integer)
        and _is_table(meta.get("guard_counters"), _is_integer)
        and _is_integer(meta.get("seed"))
        and _is_list_of_names(meta.get("nonfinite", []))
        and "optimizer" in meta
    )
    if not is_sound:
        raise StateError("Expected a state saved by driftproof, but its description is damaged. Load an earlier state.")


def _is_table(value: object, is_valid: Any) -> bool:  # noqa: ANN401  # a predicate
    if not isinstance(value, dict):
        return False
    try:
        return all(is_valid(item) for item in value.values())
    except (IndexError, KeyError, TypeError):
        return False


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_form(value: Any) -> bool:  # noqa: ANN401  # JSON has no static type
    """Whether `value` is a shape and a dtype."""
    shape, dtype = value if isinstance(value, list) and len(value) == 2 else (None, None)
    return isinstance(shape, list) and all(map(_is_integer, shape)) and isinstance(dtype, str)


def check_counters(meta: Mapping[str, Any], names: tuple[str, ...], accumulate: int | str) -> None:
    """Raise unless every counter is there and in its range."""
    counters = meta["counters"]
    largest = {"paused": 1}
    if isinstance(accumulate, int):
        largest["accumulated_batches"] = accumulate - 1
    expected = [(name, counters.get(name), largest.get(name, _LARGEST)) for name in names]
    expected += [(name, value, _LARGEST) for name, value in meta["guard_counters"].items()]
    for name, value, most in expected:
        if value is None or not 0 <= value <= most:
            raise StateError(f"Expected the counter `{name}` to be 0 to {most}, but the state has {value}.")


def check_optimizer(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless an optimizer's saved state has the form of its own.

    Args:
        own: The `state_dict` of an optimizer as it was built. One that torch does not know has no state yet.
        saved: The `state_dict` to load.
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
    tensors = [value for values in saved["state"].values() for value in values.values() if isinstance(value, Tensor)]
    if not all(map(is_finite, tensors)):
        raise ValueError("it holds NaN or infinite values")


def _check_like(name: str, own: object, saved: object) -> None:
    if isinstance(own, tuple | list) and isinstance(saved, tuple | list) and len(own) == len(saved):
        for one, other in zip(own, saved, strict=True):
            _check_like(name, one, other)
    elif isinstance(own, Tensor) and isinstance(saved, Tensor):
        if own.shape != saved.shape or not same_kind(own.dtype, saved.dtype):
            raise ValueError(f"{name} is {tuple(saved.shape)} of {saved.dtype}, not {tuple(own.shape)} of {own.dtype}")
    elif _is_number(own) or (isinstance(own, Tensor) and own.ndim == 0):
        if not (_is_number(saved) or (isinstance(saved, Tensor) and saved.ndim == 0 and is_finite(saved))):
            raise ValueError(f"{name} is {saved!r}, not a finite number")
    elif own is not None and type(own) is not type(saved):
        raise ValueError(f"{name} is {saved!r}, not {own!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
