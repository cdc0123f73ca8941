"""Optimizers whose state exists before the first step, and can be backed up and reset."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from driftproof.adapter.method import Method, check_needs_closure

__all__ = [
    "HostState",
    "build_optimizer",
    "check_optimizer_state",
    "initial_values",
    "iter_tensors",
    "load_optimizer_state",
    "match_strides",
]

# State that does not start at zero: a number, or the name of the group's setting that it starts from.
_INITIAL: dict[type[torch.optim.Optimizer], dict[str, float | str]] = {
    torch.optim.SGD: {},
    torch.optim.Adam: {},
    torch.optim.AdamW: {},
    torch.optim.RMSprop: {},
    torch.optim.Adadelta: {},
    torch.optim.Adamax: {},
    torch.optim.RAdam: {},
    torch.optim.NAdam: {"mu_product": 1.0},
    torch.optim.Rprop: {"step_size": "lr"},
    torch.optim.ASGD: {"eta": "lr", "mu": 1.0},
    torch.optim.Adagrad: {"sum": "initial_accumulator_value"},
}
# How a step is computed, not what: these stay as the optimizer was built when a state is loaded.
_IMPLEMENTATION_FLAGS = ("capturable", "foreach", "fused")
_CONTAINERS = (dict, list, tuple)


def build_optimizer(
    method: Method, parameters: tuple[torch.nn.Parameter, ...], *, capturable: bool
) -> torch.optim.Optimizer:
    """Build a method's optimizer, with its state in place.

    On a CUDA device it steps all parameters in one launch, where it can and nobody chose otherwise; every engine does,
    so that captured and eager steps round alike.
    """
    assert method.optimizer is not None  # Method checks it
    optimizer = method.optimizer(parameters)
    check_needs_closure(optimizer)
    device = parameters[0].device
    for group in optimizer.param_groups:
        on_cuda = device.type == "cuda" and "capturable" in group
        if on_cuda and group.get("fused", False) is None and not group.get("foreach"):
            group["fused"] = True
        if on_cuda and capturable:
            group["capturable"] = True
            # Its first steps are not captured; torch would warn of that.
            optimizer._warned_capturable_if_run_uncaptured = True
        if method.lr_schedule is not None:
            group["initial_lr"] = float(group["lr"])
            group["lr"] = torch.tensor(group["initial_lr"], device=device)
            if on_cuda:
                group["capturable"] = True
            elif device.type == "cuda" and isinstance(optimizer, torch.optim.SGD) and not group["foreach"]:
                group["fused"] = True  # its other forms fetch the learning rate from the device
    _materialize(optimizer)
    return optimizer


def _materialize(optimizer: torch.optim.Optimizer) -> None:
    """Have the state exist before the first step, as it would be at its beginning."""
    special = _INITIAL.get(type(optimizer))
    if special is None or any(group.get("dampening") for group in optimizer.param_groups):
        return  # unknown; SGD's first step takes no dampening
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    before = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    with torch.enable_grad():
        optimizer.step()
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
            parameter.grad = None
        for tensor, value in initial_values(optimizer):
            tensor.copy_(value)


def initial_values(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Each tensor of the optimizer's state with its value before the first step."""
    special = _INITIAL.get(type(optimizer), {})
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key, tensor in optimizer.state.get(parameter, {}).items():
                if isinstance(tensor, Tensor):
                    start = special.get(key, 0.0)
                    value = group[start] if isinstance(start, str) else start
                    # Filled on the device: a captured step cannot copy from the host.
                    yield tensor, value if isinstance(value, Tensor) else torch.full_like(tensor, value)


def has_known_start(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `initial_values` is right for this optimizer."""
    return type(optimizer) in _INITIAL and not any(group.get("dampening") for group in optimizer.param_groups)


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a `state_dict`, keeping the way of computing and the memory layout of this optimizer."""
    flags = [{flag: group[flag] for flag in _IMPLEMENTATION_FLAGS if flag in group} for group in optimizer.param_groups]
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, own, rate in zip(optimizer.param_groups, flags, rates, strict=True):
        group.update(own)
        if isinstance(rate, Tensor):
            group["lr"] = rate.copy_(torch.as_tensor(group["lr"]))
        on_device = group.get("capturable") or group.get("fused")
        for parameter in group["params"]:
            values = optimizer.state.get(parameter, {})
            for key, value in values.items():
                if key == "step" and isinstance(value, Tensor):
                    values[key] = value.to(parameter.device if on_device else "cpu")
                elif isinstance(value, Tensor) and value.shape == parameter.shape:
                    values[key] = match_strides(value, parameter)


def check_optimizer_state(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Raise unless a `state_dict` has the form of a new optimizer's; of other classes than torch's, less is known."""
    fresh, groups = optimizer.state_dict(), saved["param_groups"]
    if [group["params"] for group in groups] != [group["params"] for group in fresh["param_groups"]]:
        raise ValueError("its parameter groups hold other parameters")
    if type(optimizer) in _INITIAL:
        for group, own in zip(groups, fresh["param_groups"], strict=True):
            for name in own.keys() - {"params", *_IMPLEMENTATION_FLAGS}:
                if not _is_setting_like(group[name], own[name]):
                    raise ValueError(f"`{name}` is {group[name]!r}")
            settings = inspect.signature(type(optimizer)).parameters.keys() - {"params", *_IMPLEMENTATION_FLAGS}
            type(optimizer)([torch.zeros(1)], **{name: group[name] for name in settings})  # checks their ranges
    for number, own in fresh["state"].items():
        values = saved["state"][number]
        if values.keys() != own.keys():
            raise ValueError(f"parameter {number} has {', '.join(map(str, values))} in place of {', '.join(own)}")
        for key, value in own.items():
            if isinstance(value, Tensor) and not _is_tensor_like(values[key], value):
                raise ValueError(f"`{key}` of parameter {number} is another tensor or none")


def _is_setting_like(value: object, own: object) -> bool:
    if own is None or isinstance(own, bool | str):
        return value == own and type(value) is type(own)
    if isinstance(own, int | float | Tensor):
        is_number = isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
        return is_number or (isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex())
    if isinstance(own, tuple) and isinstance(value, list | tuple):
        return len(value) == len(own) and all(map(_is_setting_like, value, own))
    return type(value) is type(own)


def _is_tensor_like(value: object, own: Tensor) -> bool:
    same_kind = isinstance(value, Tensor) and value.is_floating_point() == own.is_floating_point()
    return same_kind and value.is_complex() == own.is_complex() and value.shape == own.shape  # type: ignore[attr-defined]


def match_strides(value: Tensor, parameter: Tensor) -> Tensor:
    """The same values in the parameter's memory layout, which fused optimizers require."""
    if value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def iter_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """The tensors of an optimizer's state and settings, however deep."""
    groups = ({key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups)
    return _tensors([*optimizer.state.values(), *groups])


class HostState:
    """What an optimizer keeps outside of device tensors, to be put back where a step is undone.

    Counters in Python numbers, tensors on another device, and which containers hold which tensors.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._optimizer = optimizer
        self._entries = [(parameter, _copy_containers(state)) for parameter, state in optimizer.state.items()]
        self._groups = [_copy_containers(group) for group in optimizer.param_groups]
        elsewhere = [tensor for tensor in iter_tensors(optimizer) if tensor.device != device]
        self._elsewhere = [(tensor, tensor.clone()) for tensor in elsewhere]

    def restore(self) -> None:
        """Put everything back."""
        self._optimizer.state.clear()
        for parameter, state in self._entries:
            self._optimizer.state[parameter] = state
        for group, before in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.clear()
            group.update(before)
        with torch.no_grad():
            for tensor, value in self._elsewhere:
                tensor.copy_(value)

    def collect_replaced(self) -> None:
        """Copy tensors that took the place of others into those, so that they keep their addresses."""
        for parameter, before in self._entries:
            state = self._optimizer.state.get(parameter, {})
            for key, held in before.items():
                tensor = state.get(key)
                both = isinstance(held, Tensor) and isinstance(tensor, Tensor) and tensor is not held
                if both and tensor.shape == held.shape and tensor.device == held.device:
                    state[key] = held.copy_(tensor)

    @staticmethod
    def is_needed(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
        """Whether a step may change anything but tensors on the device that stay in their place."""
        if type(optimizer) not in _INITIAL or not has_known_start(optimizer):
            return True
        return any(tensor.device != device for tensor in iter_tensors(optimizer))


def _copy_containers(value: Any) -> Any:  # noqa: ANN401  # an optimizer may keep anything
    """The same values in containers of their own."""
    if not isinstance(value, dict):
        return type(value)(map(_copy_containers, value)) if type(value) in (list, tuple) else value
    return {key: _copy_containers(item) if isinstance(item, _CONTAINERS) else item for key, item in value.items()}


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, _CONTAINERS):
            yield from _tensors(value.values() if isinstance(value, dict) else value)
