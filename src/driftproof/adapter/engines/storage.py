"""Everything a recorded step reads and writes, kept in one place for as long as the recording lives."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from driftproof.adapter.flat import Flat, joined
from driftproof.errors import EngineError

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["Storage"]

_Slot = tuple[dict[Any, Any], Any, Tensor | None]


class Storage:
    """The tensors of an adapter that outlive a step, none of which may move while a recording refers to them.

    Parts replace their buffers; a recording knows addresses. So every buffer, and what the optimizer keeps, is held
    here, and whatever a step or the host put in its place is copied back into it.

    Args:
        adapter: Whose tensors.

    Attributes:
        index: How many batches went well, on the device.
        waiting: How many batches wait for their step.
        taken: How many steps were taken.
        total: The gradients that wait, all zero where none do; empty without accumulation.
        live: What a step of the optimizer changes.
    """

    def __init__(self, adapter: "Adapter") -> None:
        self.index, self.waiting, self.taken = (
            torch.zeros((), dtype=torch.int64, device=adapter.device) for _ in range(3)
        )
        accumulates = bool(adapter._names) and adapter.accumulate > 1
        self.total = [torch.zeros_like(parameter) for parameter in adapter._movable] if accumulates else []
        self._slots = list(_slots(adapter))
        # A rate that is a tensor may be on the host, where nothing is recorded.
        live = adapter._stepper.live() if adapter._names else []
        changing = [tensor for tensor in live if tensor.device == adapter.device]
        held = (tensor for _, _, tensor in (*self._slots, *_parameters(adapter)) if tensor is not None)
        self.live = joined(changing, held)
        # Aliases: they keep the memory alive even where somebody gives a parameter other data.
        self._fixed = [(table, key, tensor.detach()) for table, key, tensor in _parameters(adapter)]

    def stands(self) -> bool:
        """Whether the parameters are where they were."""
        return all(table[key].data_ptr() == held.data_ptr() for table, key, held in self._fixed)

    def adopt(self, adapter: "Adapter") -> bool:
        """Take over what the host knows; False where the adapter has come to hold other tensors than at the start."""
        slots = list(_slots(adapter))
        if [_form(slot) for slot in slots] != [_form(slot) for slot in self._slots]:
            return False
        for (table, key, tensor), (_, _, held) in zip(slots, self._slots, strict=True):
            if tensor is not held and tensor is not None and held is not None:
                held.copy_(tensor)
                table[key] = held
        self._slots = [(table, key, held) for (table, key, _), (_, _, held) in zip(slots, self._slots, strict=True)]
        self.index.fill_(adapter._index)
        if adapter._names:
            self.waiting.fill_(adapter._stepper.waiting)
            self.taken.fill_(adapter._stepper.taken)
            waiting = adapter._stepper.total or tuple(map(torch.zeros_like, self.total))
            for held, tensor in zip(self.total, waiting, strict=True):
                held.copy_(tensor)
        return True

    def tell(self, adapter: "Adapter") -> None:
        """Let the host know what the device counted."""
        index, waiting, taken = torch.stack([self.index, self.waiting, self.taken]).tolist()
        adapter._index = index
        if adapter._names:
            adapter._stepper.waiting = waiting
            adapter._stepper.taken = taken
            adapter._stepper.total = tuple(tensor.clone() for tensor in self.total) if waiting else ()

    def keep(self, act: Callable[[], None], condition: Tensor) -> None:
        """Act, and let the buffers the act replaced have their new values only where the condition holds."""
        act()
        new, old = self._replaced()
        if old:
            Flat.of(new).where(condition, Flat.of(old)).pour(old)
            self.put_back()

    def absorb(self) -> None:
        """Take over whatever was put in the place of a buffer."""
        new, old = self._replaced()
        if old:
            Flat.of(new).pour(old)
            self.put_back()

    def put_back(self) -> None:
        """Have every part hold what is kept here again."""
        for table, key, held in self._slots:
            table[key] = held

    def _replaced(self) -> tuple[list[Tensor], list[Tensor]]:
        new, old = [], []
        for table, key, held in self._slots:
            tensor = table[key]
            if tensor is held:
                continue
            if tensor is None or held is None or tensor.shape != held.shape:
                raise EngineError(
                    f"Expected `{key}` to keep its shape from batch to batch, since the step is recorded. "
                    'Use `engine="eager"`.'
                )
            new.append(tensor.to(held))
            old.append(held)
        return new, old


def _parameters(adapter: "Adapter") -> Iterator[tuple[dict[str, Any], str, nn.Parameter]]:
    """Where the networks keep their parameters: looking there is quick, and is done for every batch."""
    for network in (adapter.network, adapter.source):
        for module in network.model.modules():
            yield from (
                (module._parameters, key, value) for key, value in module._parameters.items() if value is not None
            )


def _slots(adapter: "Adapter") -> Iterator[_Slot]:
    """Where tensors are kept that a step may replace: buffers of parts, rules and models; the optimizer's state."""
    for module in _modules(adapter):
        yield from ((module._buffers, key, value) for key, value in module._buffers.items())
    if adapter._names:
        for state in adapter._stepper.optimizer.state.values():
            yield from ((state, key, value) for key, value in state.items() if isinstance(value, Tensor))


def _form(slot: _Slot) -> tuple[Any, ...]:
    _, key, tensor = slot
    return (key,) if tensor is None else (key, tensor.shape, tensor.dtype, tensor.device)


def _modules(adapter: "Adapter") -> Iterable[nn.Module]:
    roots = (*adapter._parts, adapter.network, adapter.source)
    return {id(module): module for root in roots for module in root.modules()}.values()
