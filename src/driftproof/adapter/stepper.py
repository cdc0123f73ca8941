"""From a loss to moved parameters, or to none."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from driftproof.adapter.undo import Undo, all_finite
from driftproof.distributed import Distributed

__all__ = ["MakeOptimizer", "Stepper", "Verdict"]

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

# Not settings of the method, but ways of computing it: they stay those of the optimizer that was made here.
_WAYS = ("capturable", "foreach", "fused")


class Verdict(NamedTuple):
    """What came of a batch.

    Attributes:
        sound: Whether every number was finite.
        wanted: Whether there was anything to learn.
        stepped: Whether the optimizer moved the parameters.
    """

    sound: bool
    wanted: bool
    stepped: bool


class Stepper:
    """Accumulates gradients, takes the optimizer's step, looks at the result once, and takes it back if it is no good.

    Args:
        parameters: What moves.
        make: Makes the optimizer.
        accumulate: Batches whose gradients are averaged for one step.
        distributed: Whose gradients are summed; None is this process alone.

    Attributes:
        optimizer: The optimizer at work.
        total: The sum of the gradients that wait for their step.
        waiting: How many batches they come from.
        taken: How many steps the optimizer has taken.
    """

    def __init__(
        self,
        parameters: tuple[nn.Parameter, ...],
        make: MakeOptimizer,
        accumulate: int,
        distributed: Distributed | None = None,
    ) -> None:
        self.parameters = parameters
        self.accumulate = accumulate
        self.optimizer = make(parameters)
        self.total: tuple[Tensor, ...] = ()
        self.waiting = 0
        self.taken = 0
        self._distributed = distributed or Distributed()
        self._undo = Undo(self.optimizer)

    def attempt(self, objective: Tensor, wanted: Tensor) -> Verdict:
        """Learn from one batch.

        Args:
            objective: The loss, with its graph.
            wanted: Whether the batch holds anything to learn from, as a boolean tensor.
        """
        gradients = self._distributed.gradients(objective, self.parameters)
        if self.waiting:
            gradients = tuple(before + now for before, now in zip(self.total, gradients, strict=True))
        due = self.waiting + 1 == self.accumulate
        if due:
            self._undo.remember()
            try:
                self.step(gradients)
            except BaseException:
                self._undo.restore()
                raise
        # A gradient that is not finite shows in what the optimizer made of it.
        finite = all_finite([objective, *(self.live() if due else gradients)], objective.device)
        # The one place where the host waits for the device: whether to keep the step is decided here.
        sound, useful = torch.stack([finite, wanted]).tolist()
        if sound and useful:
            self.total, self.waiting = ((), 0) if due else (gradients, self.waiting + 1)
            self.taken += due
        elif due:
            self._undo.restore()
        return Verdict(sound, useful, stepped=due and sound and useful)

    def rewind(self, total: tuple[Tensor, ...], waiting: int, taken: int) -> None:
        """Go back to before the last attempt, to what these attributes were then."""
        if self.taken != taken:
            self._undo.restore()
        self.total, self.waiting, self.taken = total, waiting, taken

    def state_dict(self) -> dict[str, Any]:
        """Everything but the parameters themselves."""
        counts = {"waiting": self.waiting, "taken": self.taken}
        return {"optimizer": self.optimizer.state_dict(), "total": self.total, **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; tensors go where the parameters are."""
        ways = [{way: group[way] for way in _WAYS if way in group} for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, own in zip(self.optimizer.param_groups, ways, strict=True):
            group.update(own)
            _place(self.optimizer, group)
        self.total = tuple(value.to(like) for value, like in zip(state["total"], self.parameters, strict=False))
        self.waiting = state["waiting"]
        self.taken = state["taken"]

    def live(self) -> list[Tensor]:
        """The tensors a step changes: parameters first, then the optimizer's own."""
        return self._undo.live()

    def step(self, gradients: tuple[Tensor, ...]) -> None:
        """Let the optimizer move the parameters.

        Args:
            gradients: The sum over the batches of the step.
        """
        if self.accumulate > 1:
            gradients = tuple(torch._foreach_div(gradients, float(self.accumulate)))
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = _laid_out_like(gradient, parameter)
        try:
            self.optimizer.step()
        finally:
            for parameter in self.parameters:
                parameter.grad = None


def _place(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """Keep what was loaded where and how this way of computing wants it.

    Step counters are on the device or on the host; what is kept for a parameter is laid out in memory as that is.
    """
    on_device = group.get("capturable") or group.get("fused")
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        for key, value in state.items():
            if key == "step" and isinstance(value, Tensor):
                state[key] = value.to(parameter.device if on_device else "cpu")
            elif isinstance(value, Tensor) and value.shape == parameter.shape:
                state[key] = _laid_out_like(value, parameter)


def _laid_out_like(value: Tensor, parameter: Tensor) -> Tensor:
    """The same numbers in the parameter's memory layout, which an optimizer that moves all in one launch asks for."""
    if value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
