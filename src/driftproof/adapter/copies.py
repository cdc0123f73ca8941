"""The adapter's own copies of the user's model."""

import copy

import torch
from torch import nn

from driftproof.errors import ModelError
from driftproof.problems import blocking_problems, copy_problem
from driftproof.scopes import Scope

__all__ = ["make_adapting_and_frozen", "restore_buffers"]


def make_adapting_and_frozen(
    model: nn.Module, scope: Scope, *, channels_last: bool = False
) -> tuple[nn.Module, nn.Module, tuple[str, ...]]:
    """A copy that adapts, a copy that stays, and the names of the parameters in which they may come to differ.

    Neither shares storage with `model`. They share with each other the parameters that no step can change, so the
    frozen copy of a network that adapts its normalization layers costs next to nothing. A model that cannot be adapted
    at all is refused with every reason.
    """
    errors = blocking_problems(model)
    if errors:
        raise ModelError(" ".join(f"{problem.message}. {problem.fix}" for problem in errors))
    try:
        adapting = _detached(copy.deepcopy(model))
    except Exception as error:  # anything a user's own __deepcopy__ may raise
        problem = copy_problem(error)
        raise ModelError(f"{problem.message}. {problem.fix}") from error
    if channels_last:
        for parameter in adapting.parameters():
            if parameter.ndim == 4:  # torch has another layout for volumes, and images are what comes
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    moving = scope.parameters(adapting)
    identities = {id(parameter) for parameter in moving.values()}
    shared = {id(parameter): parameter for parameter in adapting.parameters() if id(parameter) not in identities}
    frozen = copy.deepcopy(adapting, shared)  # the memo of a deep copy: what is in it is not copied again
    for parameter in moving.values():
        parameter.requires_grad_(True)
    return adapting, frozen, tuple(moving)


def restore_buffers(model: nn.Module, start: nn.Module) -> None:
    """Have the buffers of a model be what they are in a copy of it, whatever its own code made of them since."""
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


def _detached(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
    return model
