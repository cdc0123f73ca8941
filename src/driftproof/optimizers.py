"""Optimizers whose state exists before the first step, and can be backed up and reset."""

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._pytree import tree_leaves, tree_map

from driftproof.errors import ConfigurationError

__all__ = [
    "FusedAdam",
    "MakeOptimizer",
    "OptimizerBackup",
    "bind_learning_rate",
    "build_optimizer",
    "has_known_start",
    "initial_values",
    "iter_tensors",
    "load_optimizer_state",
    "match_strides",
    "steps_in_place",
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
_ADAM_STATE = {"exp_avg": 0, "exp_avg_sq": 1, "step": 2}.keys()  # in this order
_GLOBAL_HOOKS = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)


MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def build_optimizer(
    make: MakeOptimizer, parameters: tuple[nn.Parameter, ...], *, capturable: bool, scheduled: bool
) -> torch.optim.Optimizer:
    """Build an optimizer, with its state in place.

    On a CUDA device it steps all parameters in one launch, where it can and nobody chose otherwise; every engine does,
    so that captured and eager steps round alike.

    Args:
        make: Makes it from the parameters.
        parameters: What it steps.
        capturable: Whether its steps may be captured in a CUDA graph.
        scheduled: Whether its learning rate follows a schedule, and so must be a tensor.
    """
    optimizer = make(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigurationError(
            "Expected `optimizer` to make a torch.optim.Optimizer from parameters, but it returned "
            f"{type(optimizer).__name__}. Pass a class such as `torch.optim.Adam`."
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigurationError(
            f"Expected an optimizer that steps from gradients, but {type(optimizer).__name__} needs a closure that "
            "computes the loss again. Choose another, such as Adam or SGD."
        )
    device = parameters[0].device
    for group in optimizer.param_groups:
        on_cuda = device.type == "cuda" and "capturable" in group
        if on_cuda and group.get("fused", False) is None and not group.get("foreach"):
            group["fused"] = True
        if on_cuda and capturable:
            group["capturable"] = True
            # Its first steps are not captured; torch would warn of that.
            optimizer._warned_capturable_if_run_uncaptured = True
        if scheduled:
            group["initial_lr"] = float(group["lr"])
            group["lr"] = torch.tensor(group["initial_lr"], device=device)
            if on_cuda:
                group["capturable"] = True
            elif device.type == "cuda" and isinstance(optimizer, torch.optim.SGD) and not group["foreach"]:
                group["fused"] = True  # its other forms fetch the learning rate from the device
    _materialize(optimizer)
    return optimizer


def bind_learning_rate(make: Callable[..., torch.optim.Optimizer], lr: float) -> MakeOptimizer:
    """Have an optimizer made with this learning rate, unless `make` has one of its own, or takes none."""
    try:
        taken = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # no function, which is refused later, or one that does not say
        return partial(make, lr=lr) if callable(make) else make
    takes_lr = any(one.name == "lr" or one.kind is inspect.Parameter.VAR_KEYWORD for one in taken)
    return partial(make, lr=lr) if takes_lr and "lr" not in getattr(make, "keywords", {}) else make


def _materialize(optimizer: torch.optim.Optimizer) -> None:
    """Have the state exist before the first step, as it would be at its beginning."""
    if not has_known_start(optimizer):
        return
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


def has_known_start(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `initial_values` is right for this optimizer: SGD's first step takes no dampening."""
    return type(optimizer) in _INITIAL and not any(group.get("dampening") for group in optimizer.param_groups)


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


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a `state_dict`, keeping the way of computing and the memory layout of this optimizer."""
    groups = [dict(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, groups, strict=True):
        group.update({flag: own[flag] for flag in _IMPLEMENTATION_FLAGS if flag in own})
        if isinstance(own.get("lr"), Tensor):
            group["lr"] = own["lr"].copy_(torch.as_tensor(group["lr"]))
        on_device = group.get("capturable") or group.get("fused")
        for parameter in group["params"]:
            values = optimizer.state.get(parameter, {})
            for key, value in values.items():
                if key == "step" and isinstance(value, Tensor):
                    values[key] = value.to(parameter.device if on_device else "cpu")
                elif isinstance(value, Tensor) and value.shape == parameter.shape:
                    values[key] = match_strides(value, parameter)


def match_strides(value: Tensor, parameter: Tensor) -> Tensor:
    """The same values in the parameter's memory layout, which fused optimizers require."""
    if value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def iter_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """The tensors of an optimizer's state and settings, however deep."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return (value for value in tree_leaves([*optimizer.state.values(), *groups]) if isinstance(value, Tensor))


class FusedAdam:
    """Takes the step of torch's fused Adam over tensors that were looked up before.

    The kernels are those that the optimizer would launch; to look the tensors up takes most of its host time, which is
    what an eager step of a small network waits for.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._params = optimizer.param_groups[0]["params"]
        self._state = [[optimizer.state[one][key] for one in self._params] for key in _ADAM_STATE]

    @classmethod
    def find(cls, optimizer: torch.optim.Optimizer | None, parameters: Sequence[Tensor]) -> "FusedAdam | None":
        """Such a step of an optimizer, if it is one launch over just these parameters; else None."""
        if type(optimizer) is not torch.optim.Adam or len(optimizer.param_groups) > 1:
            return None
        (group,) = optimizer.param_groups
        is_plain = group["fused"] and not any(group.get(name) for name in ("amsgrad", "decoupled_weight_decay"))
        stepped, kinds = group["params"], {(one.device, one.dtype) for one in parameters}
        same = len(stepped) == len(parameters) and all(map(operator.is_, stepped, parameters)) and len(kinds) == 1
        has_state = all(optimizer.state.get(one, {}).keys() >= _ADAM_STATE for one in stepped)
        numbers = all(isinstance(beta, float) for beta in group["betas"])
        return cls(optimizer) if is_plain and same and has_state and numbers else None

    def step(self, gradients: Sequence[Tensor]) -> bool:
        """Step all parameters without a graph; false if the optimizer has to, since somebody has changed it."""
        if len(self._optimizer.param_groups) > 1 or not _is_untouched(self._optimizer):
            return False
        group, (means, squares, counts) = self._optimizer.param_groups[0], self._state
        beta1, beta2 = group["betas"]
        torch._foreach_add_(counts, 1)
        torch._fused_adam_(
            self._params, list(gradients), means, squares, [], counts, amsgrad=False, lr=group["lr"], beta1=beta1,
            beta2=beta2, weight_decay=group["weight_decay"], eps=group["eps"], maximize=group["maximize"],
        )  # fmt: skip
        return True


def _is_untouched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether nobody hooks into its steps, or scales their gradients."""
    held = vars(optimizer)
    hooks = (held["_optimizer_step_pre_hooks"], held["_optimizer_step_post_hooks"])
    return not (any((*hooks, *_GLOBAL_HOOKS)) or held.keys() & {"step", "grad_scale", "found_inf"})


def steps_in_place(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Whether a step changes nothing but tensors on the device, which stay where they are."""
    return has_known_start(optimizer) and all(tensor.device == device for tensor in iter_tensors(optimizer))


class OptimizerBackup:
    """A copy of an optimizer's whole state, whatever it consists of."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        def copy(value: object) -> object:
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                return value.detach().clone()
            return value

        self._optimizer = optimizer
        self._state, self._groups = tree_map(copy, (dict(optimizer.state), optimizer.param_groups))

    def restore(self) -> None:
        """Put the copy in the place of the state."""
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        for group, before in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.clear()
            group.update(before)
