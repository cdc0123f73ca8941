"""The networks of an adapter, over its own copies of the user's model."""

import copy
from typing import Any

import torch
from torch import nn

from driftproof.adapter.method import Method
from driftproof.distributed import Distributed
from driftproof.errors import ModelError
from driftproof.network import LogitsAccessor, Network, Precision
from driftproof.problems import blocking_problems, copy_problem
from driftproof.scopes import Scope

__all__ = ["build_networks", "restore_buffers", "restore_model"]


def build_networks(
    model: nn.Module,
    method: Method,
    *,
    channels_last: bool,
    precision: Precision | None,
    source_precision: Precision | None,
    logits: LogitsAccessor | None,
    classifier: str | None,
    distributed: Distributed,
) -> tuple[dict[str, Network], tuple[str, ...]]:
    """Build the networks of an adapter over copies of the user's model; the arguments are those of `Adapter`.

    Returns:
        The networks by name: "network" adapts, "source" is frozen; "teacher" and "detector" are there if the method has
        them. Then the names of the parameters that train.
    """
    adapting, frozen, names = _copy_model(model, method.scope, channels_last=channels_last)
    shared: dict[str, Any] = {"logits": logits, "classifier": classifier, "distributed": distributed}
    rule, teacher, detector = method.statistics, None, None
    if method.detector is not None:
        # Of a copy that is made before there are hooks, with the same parameters and buffers of its own.
        watching = copy.deepcopy(frozen, {id(parameter): parameter for parameter in frozen.parameters()})
        followed = method.detector.statistics or rule
        detector = Network(watching, followed, precision=precision, frozen=True, **shared)
    network, followed = Network(adapting, rule, precision=precision, **shared), method.source_statistics or rule
    source = Network(frozen, followed, precision=source_precision or precision, frozen=True, **shared)
    if method.teacher is not None:
        teacher = network.clone().requires_grad_(False)
    named = {"network": network, "source": source, "teacher": teacher, "detector": detector}
    networks = {name: one for name, one in named.items() if one is not None}
    if method.memory is not None:
        for one in networks.values():
            one.predict_unless_learning()
    return networks, names


def _copy_model(model: nn.Module, scope: Scope, *, channels_last: bool) -> tuple[nn.Module, nn.Module, tuple[str, ...]]:
    """Make a copy that adapts and a copy that stays, and name the parameters in which they may differ.

    Neither shares storage with `model`. They share with each other the parameters that no step can change, so the
    frozen copy of a network that adapts its normalization layers costs next to nothing. A model that cannot be adapted
    is refused with every reason.
    """
    errors = blocking_problems(model)
    if errors:
        raise ModelError(" ".join(f"{problem.message}. {problem.fix}" for problem in errors))
    try:
        adapting = copy.deepcopy(model)
    except Exception as error:  # a user's own __deepcopy__ may raise anything
        problem = copy_problem(error)
        raise ModelError(f"{problem.message}. {problem.fix}") from error
    for parameter in adapting.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
        if channels_last and parameter.ndim == 4:  # torch has another layout for volumes
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    trainable = scope.parameters(adapting)
    identities = {id(parameter) for parameter in trainable.values()}
    shared = {id(parameter): parameter for parameter in adapting.parameters() if id(parameter) not in identities}
    frozen = copy.deepcopy(adapting, shared)  # deepcopy's memo: what is in it is not copied again
    for parameter in trainable.values():
        parameter.requires_grad_(True)
    return adapting, frozen, tuple(trainable)


def restore_model(model: nn.Module, start: nn.Module) -> None:
    """Return the parameters and the buffers of a model to those of a copy of it."""
    values = dict(start.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters():
        if parameter is not values[name]:
            parameter.copy_(values[name])
    restore_buffers(model, start)


def restore_buffers(model: nn.Module, start: nn.Module) -> None:
    """Return the buffers of a model to those of a copy of it, whatever its own code did to them since."""
    known = dict(start.named_modules())
    for ours, theirs in ((module, known[path]) for path, module in model.named_modules() if path in known):
        for name in [name for name in ours._buffers if name not in theirs._buffers]:
            del ours._buffers[name]
        for name, initial in theirs._buffers.items():
            buffer = ours._buffers.get(name)
            if buffer is not None and initial is not None and buffer.shape == initial.shape:
                buffer.copy_(initial)
            else:
                ours._buffers[name] = None if initial is None else initial.clone()
