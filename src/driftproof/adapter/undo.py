"""Taking one optimizer step back."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Undo", "all_finite"]

_CONTAINERS = (dict, list, tuple)


class Undo:
    """Remembers parameters and optimizer state before a step, so that a bad step can be taken back exactly.

    Some optimizers keep what they have learned in their groups, or in lists. The copies live in buffers that are reused
    from step to step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._entries: list[tuple[Any, dict[str, Any]]] = []
        self._groups: list[dict[str, Any]] = []
        self._copies: list[Tensor] = []

    def remember(self) -> None:
        """Copy everything a step may change."""
        self._entries = [(parameter, _rebuilt(state)) for parameter, state in self._optimizer.state.items()]
        self._groups = [_rebuilt(group) for group in self._optimizer.param_groups]
        live = self.live()
        if len(live) != len(self._copies):
            self._copies = [torch.empty_like(tensor) for tensor in live]
        _copy(self._copies, live)

    def restore(self) -> None:
        """Put everything back where it was."""
        self._optimizer.state.clear()
        for parameter, state in self._entries:
            self._optimizer.state[parameter] = state
        for group, before in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.clear()
            group.update(before)
        _copy(self.live(), self._copies)

    def live(self) -> list[Tensor]:
        """The tensors a step changes: parameters first, then the optimizer's own."""
        groups = (_but_parameters(group) for group in self._optimizer.param_groups)
        return self._parameters + list(_tensors([*self._optimizer.state.values(), *groups]))


def all_finite(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """Whether no entry of the tensors on `device` is NaN or infinite, as a tensor: nothing is fetched or sent.

    Optimizers keep step counters on the host; those cannot go wrong in a way that the parameters do not show.
    """
    here = (tensor for tensor in tensors if tensor.device == device and tensor.numel())
    floating = [tensor for tensor in here if tensor.is_floating_point()]
    with torch.no_grad():
        return torch.stack(torch._foreach_norm(floating, float("inf"))).isfinite().all()


def _but_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _rebuilt(value: Any) -> Any:  # noqa: ANN401  # an optimizer may keep anything
    """The same in containers of its own, so that what is put into the others later does not show in them."""
    if not isinstance(value, dict):
        return type(value)(map(_rebuilt, value)) if type(value) in (list, tuple) else value
    copied = dict(value)
    for key, item in value.items():
        if isinstance(item, _CONTAINERS):
            copied[key] = _rebuilt(item)
    return copied


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, _CONTAINERS):
            yield from _tensors(value.values() if isinstance(value, dict) else value)


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    # One call per device and type, so that each is a single fused launch.
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for target, source in zip(targets, sources, strict=True):
        group = groups[target.device, target.dtype]
        group[0].append(target)
        group[1].append(source)
    with torch.no_grad():
        for ours, theirs in groups.values():
            torch._foreach_copy_(ours, theirs)
