"""Copying, restoring and measuring the weights of an adapter, for its guards."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from driftproof.adapter.copies import restore_model
from driftproof.adapter.optimizers import load_optimizer_state
from driftproof.adapter.state import State
from driftproof.components import flatten
from driftproof.network import BatchNormHook

__all__ = ["Weights", "copy_weights", "measure_distance", "reset_weights", "restore_weights"]


class Weights(NamedTuple):
    """A copy of what a step moves.

    Attributes:
        parameters: Of the adapting network and the teacher.
        optimizer: The optimizer's state; None where nothing learns.
        num_steps: How many steps led there.
    """

    parameters: list[Tensor]
    optimizer: dict[str, Any] | None
    num_steps: Tensor


@torch.no_grad()
def copy_weights(state: State) -> Weights:
    """Copy the weights of the networks and the optimizer's state."""
    optimizer = None if state.optimizer is None else copy.deepcopy(state.optimizer.state_dict())
    parameters = [parameter.clone() for parameter in _moving_parameters(state)]
    return Weights(parameters, optimizer, state.num_steps.clone())


@torch.no_grad()
def restore_weights(state: State, weights: Weights) -> None:
    """Return to copied weights; gradients that wait for a step are dropped, and running statistics start anew."""
    torch._foreach_copy_(_moving_parameters(state), [one.to(state.device) for one in weights.parameters])
    state.num_steps.copy_(weights.num_steps)
    _restart(state)
    if state.optimizer is not None and weights.optimizer is not None:
        load_optimizer_state(state.optimizer, weights.optimizer)


@torch.no_grad()
def reset_weights(state: State, share: float) -> None:
    """Move the weights this share of the way to the source, with a new optimizer and new running statistics.

    Components stay as they are.
    """
    torch._foreach_lerp_(list(state.trainable), list(state.source_parameters), share)
    if state.teacher is not None:
        restore_model(state.teacher.model, state.source.model)
    state.num_steps.mul_(int(share < 1.0))
    _restart(state)


def measure_distance(state: State) -> Tensor:
    """How far the weights moved from the source, relative to their norm."""
    start = flatten(state.source_parameters)
    moved, length = torch.linalg.vector_norm(flatten(state.trainable) - start), torch.linalg.vector_norm(start)
    distance: Tensor = moved / length.clamp(min=torch.finfo(start.dtype).tiny)
    return distance


def _restart(state: State) -> None:
    """Make a new optimizer, and replace running statistics, which bad weights have spoiled, by the frozen network's.

    The frozen network's are of the stream where the method runs it, and else of training.
    """
    state.accumulated_batches.zero_()
    state.rebuild_optimizer()
    for network in state.moving_networks.values():
        for hook, frozen in zip(network.hooks, state.source.hooks, strict=False):
            assert isinstance(frozen, BatchNormHook)
            for name, start in zip(("mean", "variance"), frozen.source_statistics, strict=True):
                now, other = hook._buffers.get(name), frozen._buffers.get(name)
                if now is not None and start is not None:
                    now.copy_(start if other is None else other)


def _moving_parameters(state: State) -> list[Tensor]:
    teacher = [] if state.teacher is None else list(state.teacher.model.parameters())
    return [*state.trainable, *teacher]
