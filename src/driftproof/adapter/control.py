"""What guards may do with an adapter."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from driftproof.adapter.networks import restore_model
from driftproof.adapter.state import State
from driftproof.health import Health
from driftproof.network import BatchNormHook
from driftproof.optimizers import load_optimizer_state
from driftproof.warn import warn_caller

__all__ = ["StateControl", "Weights"]

_FOR_STATISTICS = 'Shuffle the stream, or pass `statistics="auto"`, which suits small and class-ordered batches.'
_FOR_WEIGHTS = (
    "Lower the learning rate, pass `select=ConfidenceDifference()`, or have it undone with `guard=guards.RollBack()`."
)


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


class StateControl:
    """Implements `guards.Control`; `state.guard_counters` say until which batch a pause or a fall-back lasts."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._warned = False
        self._actions: list[str] = []

    @property
    def num_batches(self) -> int:
        """How many batches came since the start or the last reset."""
        return self._state.guard_counters.get("num_batches", 0)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is learned at the moment."""
        return self._is_before("paused_until")

    @property
    def falls_back(self) -> bool:
        """Whether the frozen network answers at the moment."""
        return self._is_before("falls_back_until")

    @property
    def uses_training(self) -> bool:
        """Whether it answers with the statistics of its training."""
        return self.falls_back and bool(self._state.guard_counters.get("of_training"))

    def warn(self, health: Health) -> None:
        """Say what is wrong and what to do, once."""
        if not self._warned:
            self._warned = True
            advice = _FOR_STATISTICS if health.blames_statistics else _FOR_WEIGHTS
            warn_caller(f"Adaptation is {health.state} after {self.num_batches} batches: {health.reason}. {advice}")

    def pause(self, batches: int) -> None:
        """Learn nothing from the next so many batches."""
        self._extend("paused_until", batches)
        self._actions.append("paused")

    def fall_back(self, batches: int) -> None:
        """Answer the next so many batches, this one included, with the frozen network's predictions."""
        self._extend("falls_back_until", batches)

    @torch.no_grad()
    def reset_weights(self, share: float) -> None:
        """Move the weights this share of the way back to the source; optimizer and health start anew.

        Components stay as they are.
        """
        state = self._state
        torch._foreach_lerp_(list(state.trainable), list(state.source_parameters), share)
        if state.teacher is not None:
            restore_model(state.teacher.model, state.source.model)
        state.num_steps.mul_(int(share < 1.0))
        self._restart("reset")

    @torch.no_grad()
    def take_snapshot(self) -> Weights:
        """Copy weights and optimizer."""
        optimizer = self._state.optimizer
        copied = None if optimizer is None else copy.deepcopy(optimizer.state_dict())
        parameters = [parameter.clone() for parameter in self._moving_parameters()]
        return Weights(parameters, copied, self._state.num_steps.clone())

    @torch.no_grad()
    def restore(self, snapshot: Weights) -> None:
        """Return to a snapshot; health starts anew."""
        state, (parameters, optimizer, num_steps) = self._state, snapshot
        torch._foreach_copy_(self._moving_parameters(), [one.to(state.device) for one in parameters])
        state.num_steps.copy_(num_steps)
        self._restart("rolled back")
        if state.optimizer is not None and optimizer is not None:
            load_optimizer_state(state.optimizer, optimizer)

    def _restart(self, action: str) -> None:
        """Begin anew with other weights: health, optimizer, waiting gradients and running statistics.

        Bad weights have spoiled those. The frozen network's take their place: of the stream where the method runs it,
        and else of training.
        """
        state = self._state
        state.health.clear()
        state.accumulated_batches.zero_()
        state.rebuild_optimizer()
        for network in state.moving_networks.values():
            for hook, frozen in zip(network.hooks, state.source.hooks, strict=False):
                assert isinstance(frozen, BatchNormHook)
                for name, start in zip(("mean", "variance"), frozen.source_statistics, strict=True):
                    now, other = hook._buffers.get(name), frozen._buffers.get(name)
                    if now is not None and start is not None:
                        now.copy_(start if other is None else other)
        self._actions.append(action)

    def _moving_parameters(self) -> list[Tensor]:
        teacher = self._state.teacher
        return [*self._state.trainable, *([] if teacher is None else teacher.model.parameters())]

    def _is_before(self, name: str) -> bool:
        return self.num_batches < self._state.guard_counters.get(name, 0)

    def _extend(self, name: str, batches: int) -> None:
        counters = self._state.guard_counters
        counters[name] = max(counters.get(name, 0), self.num_batches + batches)
