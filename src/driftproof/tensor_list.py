"""Many tensors treated as few vectors, so that backing up or undoing all of them takes a handful of operations."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor

__all__ = ["TensorList", "are_finite", "clone_each", "where_each"]

_SMALL = 1 << 14
"""Tensors of at most so many values are worth a copy to treat many of them at once."""
_ALIGNMENT = 64
"""In bytes: kernels that read several values at once want tensors to start at multiples of this."""


class TensorList:
    """Tensors that become views of one vector for each device and dtype among them.

    If one is strided, or overlaps with another one or with `others`, all stay where they are. A tensor that was given
    other memory since, as by an optimizer that assigns to `parameter.data`, is moved back with its values by
    `reattach`, `clone` and `restore`.

    Args:
        tensors: What to back up and undo together.
        others: Tensors that may share memory with them.
        fixed: How many of the last tensors are never given other memory.

    Attributes:
        vectors: The current values of all tensors, in few ones; not a copy.

    Examples:
        >>> now = [torch.ones(2), torch.ones(3)]
        >>> everything = TensorList(now)
        >>> before = everything.clone()
        >>> now[0].zero_(), now[1].zero_()
        (tensor([0., 0.]), tensor([0., 0., 0.]))
        >>> everything.keep_where(torch.tensor(False), before)
        >>> now
        [tensor([1., 1.]), tensor([1., 1., 1.])]
    """

    def __init__(self, tensors: Sequence[Tensor], others: Iterable[Tensor] = (), *, fixed: int = 0) -> None:
        self.tensors = list(tensors)
        if _can_relocate(tensors, others):
            groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
            for tensor in tensors:
                groups[tensor.device, tensor.dtype].append(tensor)
            self.vectors = [_relocate(group) for group in groups.values()]
        else:
            self.vectors = [tensor.detach() for tensor in tensors]
        self._watched = self.tensors[: len(tensors) - fixed]
        self._views = [tensor.detach() for tensor in self._watched]
        self._addresses = [view.data_ptr() for view in self._views]

    def clone(self) -> list[Tensor]:
        """Copy the current values."""
        self.reattach()
        return [vector.clone() for vector in self.vectors]

    def keep_where(self, condition: Tensor, before: Sequence[Tensor]) -> None:
        """Keep the values where a 0-d condition holds, else return to those of before."""
        with torch.no_grad():
            for vector, earlier in zip(self.vectors, before, strict=True):
                torch.where(condition, vector, earlier, out=vector)

    def restore(self, before: Sequence[Tensor]) -> None:
        """Return to the values of before."""
        self.reattach()
        with torch.no_grad():
            for vector, earlier in zip(self.vectors, before, strict=True):
                vector.copy_(earlier)

    def reattach(self) -> None:
        """Move tensors back that were given other memory."""
        if [tensor.data_ptr() for tensor in self._watched] == self._addresses:
            return
        for tensor, view in zip(self._watched, self._views, strict=True):
            if tensor.data_ptr() != view.data_ptr():
                tensor.data = view.copy_(tensor.detach())


def are_finite(*groups: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """For each group of tensors, whether all values are finite, as a 0-d tensor; true for an empty group."""
    with torch.no_grad():
        # One pass over each tensor, where `isfinite` takes five: NaN and Inf both show in the largest absolute value.
        largest = [torch.linalg.vector_norm(tensor, math.inf) for group in groups for tensor in group]
        if len(dtypes := {norm.dtype for norm in largest}) > 1:
            largest = [norm.to(reduce(torch.promote_types, dtypes)) for norm in largest]
        finite = torch.stack(largest) < math.inf
        flags = iter(finite.unbind())
        found = [[next(flags) for _ in group] for group in groups]
        return tuple(reduce(torch.logical_and, group) if group else torch.ones_like(finite[0]) for group in found)


def clone_each(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy each tensor, in one launch for all of a dtype."""
    copies, groups = [torch.empty_like(tensor) for tensor in tensors], defaultdict[torch.dtype, list[int]](list)
    for place, tensor in enumerate(tensors):
        groups[tensor.dtype].append(place)
    for places in groups.values():
        torch._foreach_copy_([copies[place] for place in places], [tensors[place] for place in places])
    return copies


def where_each(condition: Tensor, chosen: Sequence[Tensor] | float, others: Sequence[Tensor]) -> list[Tensor]:
    """Apply `torch.where` to each pair, in a handful of operations: running statistics alone are hundreds of tensors.

    Args:
        condition: A 0-d boolean tensor.
        chosen: What to take where it holds: tensors shaped like the others, or a number.
        others: What to take elsewhere.

    Examples:
        >>> where_each(torch.tensor(True), 0.0, [torch.ones(2), torch.ones(1)])
        [tensor([0., 0.]), tensor([0.])]
    """
    found, groups = list(others), defaultdict[object, list[int]](list)
    for place, other in enumerate(others):
        alike = isinstance(chosen, float) or (chosen[place].dtype, chosen[place].device) == (other.dtype, other.device)
        groups[(other.dtype, other.device) if alike and other.numel() <= _SMALL else place].append(place)
    for places in groups.values():
        olds = [others[place] for place in places]
        news = chosen if isinstance(chosen, float) else [chosen[place] for place in places]
        if len(places) == 1:
            found[places[0]] = torch.where(condition, news if isinstance(news, float) else news[0], olds[0])
            continue
        kept = torch.where(condition, news if isinstance(news, float) else _flatten(news), _flatten(olds))
        for place, part, old in zip(places, torch.split(kept, [old.numel() for old in olds]), olds, strict=True):
            found[place] = part.view(old.shape)
    return found


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _can_relocate(tensors: Sequence[Tensor], others: Iterable[Tensor]) -> bool:
    """Whether each tensor is dense and shares memory with no other one."""
    own = {id(tensor) for tensor in tensors}
    shared = [tensor for tensor in others if id(tensor) not in own]
    spans = [(*_span(tensor), id(tensor) in own, tensor.nbytes) for tensor in (*tensors, *shared) if tensor.numel()]
    end_of_own = end_of_any = 0
    for start, end, is_own, size in sorted(spans):
        if (is_own and end - start != size) or start < (end_of_any if is_own else end_of_own):
            return False
        end_of_any = max(end, end_of_any)
        end_of_own = max(end, end_of_own) if is_own else end_of_own
    return True


def _span(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first value and behind its last one."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _relocate(group: list[Tensor]) -> Tensor:
    """Move tensors into one vector; they become views of it with the strides they had."""
    step = _ALIGNMENT // group[0].element_size()
    starts, length = [], 0
    for tensor in group:
        starts.append(length)
        length += -(-tensor.numel() // step) * step
    vector = torch.zeros(length, dtype=group[0].dtype, device=group[0].device)
    with torch.no_grad():
        for tensor, start in zip(group, starts, strict=True):
            view = vector.as_strided(tensor.shape, tensor.stride(), start)
            tensor.data = view.copy_(tensor)
    return vector
