"""Many tensors treated as few vectors, so that backing up or undoing all of them takes a handful of operations."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

__all__ = ["ContiguousTensorList", "FlatTensors", "TensorList", "are_finite", "make_contiguous"]

_ALIGNMENT = 64
"""In bytes: kernels that read several values at once want tensors to start at multiples of this."""

_Kind = tuple[torch.device, torch.dtype]


class FlatTensors:
    """A copy of tensors, concatenated: one vector for each device and dtype among them.

    Examples:
        >>> now, before = [torch.ones(2), torch.ones(3)], FlatTensors.from_tensors([torch.zeros(2), torch.zeros(3)])
        >>> before.copy_to(now)
        >>> now
        [tensor([0., 0.]), tensor([0., 0., 0.])]

    Args:
        vectors: By device and dtype.
    """

    def __init__(self, vectors: Mapping[_Kind, Tensor]) -> None:
        self.vectors = dict(vectors)

    @classmethod
    def from_tensors(cls, tensors: Sequence[Tensor]) -> "FlatTensors":
        """Copy these tensors."""
        with torch.no_grad():
            return cls({kind: torch.cat([one.reshape(-1) for one in group]) for kind, group in _group(tensors).items()})

    def copy_to(self, tensors: Sequence[Tensor]) -> None:
        """Write the values into tensors of the same shapes, in the same order."""
        with torch.no_grad():
            for kind, group in _group(tensors).items():
                pieces = torch.split(self.vectors[kind], [one.numel() for one in group])
                torch._foreach_copy_(group, [piece.view(one.shape) for piece, one in zip(pieces, group, strict=True)])


class TensorList:
    """Tensors that stay where they are: an operation on all of them is one on each."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)

    def clone(self) -> FlatTensors:
        """Copy the current values."""
        return FlatTensors.from_tensors(self.tensors)

    def floating_point(self) -> list[Tensor]:
        """The current values of the floating-point tensors, in few vectors."""
        return [vector for vector in self.clone().vectors.values() if vector.is_floating_point()]

    def keep_where(self, condition: Tensor, before: FlatTensors) -> None:
        """Keep the values where a 0-d condition holds, else return to those of before."""
        now = self.clone()
        for kind, vector in now.vectors.items():
            now.vectors[kind] = torch.where(condition, vector, before.vectors[kind])
        now.copy_to(self.tensors)

    def restore(self, before: FlatTensors) -> None:
        """Return to the values of before."""
        before.copy_to(self.tensors)

    def reattach(self) -> None:
        """Do nothing: these tensors may be anywhere."""


class ContiguousTensorList(TensorList):
    """Tensors that become views of one vector for each device and dtype among them.

    A tensor that was given other memory since, as by an optimizer that assigns to `parameter.data`, is moved back with
    its values by `reattach`, `clone` and `restore`.

    Examples:
        >>> now = [torch.ones(2), torch.ones(3)]
        >>> everything = ContiguousTensorList(now)
        >>> before = everything.clone()
        >>> now[0].zero_(), now[1].zero_()
        (tensor([0., 0.]), tensor([0., 0., 0.]))
        >>> everything.keep_where(torch.tensor(False), before)
        >>> now
        [tensor([1., 1.]), tensor([1., 1., 1.])]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors)
        with torch.no_grad():
            self._vectors = {kind: _relocate(group) for kind, group in _group(tensors).items()}
        self._views = [tensor.detach() for tensor in tensors]
        self._addresses = [view.data_ptr() for view in self._views]

    def clone(self) -> FlatTensors:
        """As `TensorList.clone`, in one operation."""
        self.reattach()
        return FlatTensors({kind: vector.clone() for kind, vector in self._vectors.items()})

    def floating_point(self) -> list[Tensor]:
        """As `TensorList.floating_point`; not a copy."""
        return [vector for vector in self._vectors.values() if vector.is_floating_point()]

    def keep_where(self, condition: Tensor, before: FlatTensors) -> None:
        """As `TensorList.keep_where`, in one operation."""
        with torch.no_grad():
            for kind, vector in self._vectors.items():
                torch.where(condition, vector, before.vectors[kind], out=vector)

    def restore(self, before: FlatTensors) -> None:
        """As `TensorList.restore`."""
        self.reattach()
        with torch.no_grad():
            for kind, vector in self._vectors.items():
                vector.copy_(before.vectors[kind])

    def reattach(self) -> None:
        """Move tensors back that were given other memory."""
        if [tensor.data_ptr() for tensor in self.tensors] == self._addresses:
            return
        for tensor, view in zip(self.tensors, self._views, strict=True):
            if tensor.data_ptr() != view.data_ptr():
                tensor.data = view.copy_(tensor.detach())


def make_contiguous(tensors: Sequence[Tensor], others: Iterable[Tensor] = ()) -> TensorList:
    """Relocate tensors into few vectors, unless one is strided or overlaps with another one or with `others`."""
    own = {id(tensor) for tensor in tensors}
    spans = [(*_span(tensor), True) for tensor in tensors if tensor.numel()]
    spans += [(*_span(tensor), False) for tensor in others if tensor.numel() and id(tensor) not in own]
    end_of_own = end_of_any = 0
    for start, end, is_own in sorted(spans):
        if start < (end_of_any if is_own else end_of_own):
            return TensorList(tensors)
        end_of_any = max(end, end_of_any)
        end_of_own = max(end, end_of_own) if is_own else end_of_own
    return ContiguousTensorList(tensors) if all(map(_is_dense, tensors)) else TensorList(tensors)


def are_finite(*groups: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """For each group of tensors, whether all values are finite, as a 0-d tensor; true for an empty group."""
    with torch.no_grad():
        # One pass over each tensor, where `isfinite` takes five: NaN and Inf both show in the largest absolute value.
        largest = [torch.linalg.vector_norm(tensor, math.inf) for group in groups for tensor in group]
        dtype = reduce(torch.promote_types, (norm.dtype for norm in largest))
        finite = torch.stack([norm.to(dtype) for norm in largest]) < math.inf
        return tuple(
            piece[0] if len(piece) == 1 else piece.all()
            for piece in torch.split(finite, [len(group) for group in groups])
        )


def _group(tensors: Sequence[Tensor]) -> dict[_Kind, list[Tensor]]:
    groups: dict[_Kind, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.device, tensor.dtype].append(tensor)
    return groups


def _relocate(group: list[Tensor]) -> Tensor:
    """Move tensors into one vector; they become views of it with the strides they had."""
    step = _ALIGNMENT // group[0].element_size()
    starts, length = [], 0
    for tensor in group:
        starts.append(length)
        length += -(-tensor.numel() // step) * step
    vector = torch.zeros(length, dtype=group[0].dtype, device=group[0].device)
    for tensor, start in zip(group, starts, strict=True):
        view = vector.as_strided(tensor.shape, tensor.stride(), start)
        view.copy_(tensor)
        tensor.data = view
    return vector


def _span(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + _extent(tensor) * tensor.element_size()


def _is_dense(tensor: Tensor) -> bool:
    return _extent(tensor) == tensor.numel()


def _extent(tensor: Tensor) -> int:
    """How many elements lie between a tensor's first and last one in memory, both included."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
