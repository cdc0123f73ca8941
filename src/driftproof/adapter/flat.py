"""Many tensors as few vectors, so that a decision about all of them is a handful of operations."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["Flat", "Joined", "Scattered", "joined"]

_BYTES = 64
"""Joined tensors begin at a multiple of this, as kernels that read several values at once would have it."""

_Kind = tuple[torch.device, torch.dtype]


class Flat:
    """A copy of tensors, laid end to end: one vector for each device and type among them.

    Examples:
        >>> now, before = [torch.ones(2), torch.ones(3)], Flat.of([torch.zeros(2), torch.zeros(3)])
        >>> Flat.of(now).where(torch.tensor(False), before).pour(now)
        >>> now
        [tensor([0., 0.]), tensor([0., 0., 0.])]

    Args:
        vectors: By device and type.
    """

    def __init__(self, vectors: Mapping[_Kind, Tensor]) -> None:
        self.vectors = dict(vectors)

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "Flat":
        """The copy of these tensors."""
        with torch.no_grad():
            return cls(
                {kind: torch.cat([tensor.reshape(-1) for tensor in alike]) for kind, alike in _by_kind(tensors).items()}
            )

    def fractional(self) -> list[Tensor]:
        """The vectors of fractional numbers."""
        return [vector for vector in self.vectors.values() if vector.is_floating_point()]

    def where(self, condition: Tensor, other: "Flat") -> "Flat":
        """These values where the condition holds, else those of `other`; changes and returns itself."""
        for kind, vector in self.vectors.items():
            self.vectors[kind] = torch.where(condition, vector, other.vectors[kind])
        return self

    def pour(self, tensors: Sequence[Tensor]) -> None:
        """Write the values into tensors of the same shapes, in the same order."""
        with torch.no_grad():
            for kind, alike in _by_kind(tensors).items():
                pieces = torch.split(self.vectors[kind], [tensor.numel() for tensor in alike])
                torch._foreach_copy_(alike, [piece.view(like.shape) for piece, like in zip(pieces, alike, strict=True)])


class Scattered:
    """Tensors that stay where they are: what is done to all of them is done to each."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors

    def copied(self) -> Flat:
        """What all hold now."""
        return Flat.of(self._tensors)

    def fractional(self) -> list[Tensor]:
        """What those of fractional numbers hold now."""
        return self.copied().fractional()

    def choose(self, condition: Tensor, before: Flat) -> None:
        """Leave everything as it is where the condition holds, else as it was before."""
        self.copied().where(condition, before).pour(self._tensors)

    def restore(self, before: Flat) -> None:
        """Put everything back."""
        before.pour(self._tensors)


class Joined(Scattered):
    """Tensors that are, from now on, views of one vector for each device and type among them.

    One that is given other memory, as by an optimizer that assigns to `parameter.data`, is fetched back with what it
    holds before anything is done to all.

    Examples:
        >>> now = [torch.ones(2), torch.ones(3)]
        >>> everything = Joined(now)
        >>> before = everything.copied()
        >>> now[0].zero_(), now[1].zero_()
        (tensor([0., 0.]), tensor([0., 0., 0.]))
        >>> everything.choose(torch.tensor(False), before)
        >>> now
        [tensor([1., 1.]), tensor([1., 1., 1.])]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors)
        with torch.no_grad():
            self._vectors = {kind: _moved(alike) for kind, alike in _by_kind(tensors).items()}
        self._places = [tensor.detach() for tensor in tensors]

    def copied(self) -> Flat:
        """As `Scattered.copied`, in one operation."""
        self._fetch_back()
        return Flat({kind: vector.clone() for kind, vector in self._vectors.items()})

    def fractional(self) -> list[Tensor]:
        """As `Scattered.fractional`; not a copy."""
        self._fetch_back()
        return Flat(self._vectors).fractional()

    def choose(self, condition: Tensor, before: Flat) -> None:
        """As `Scattered.choose`, in one operation."""
        self._fetch_back()
        with torch.no_grad():
            for kind, vector in self._vectors.items():
                torch.where(condition, vector, before.vectors[kind], out=vector)

    def restore(self, before: Flat) -> None:
        """As `Scattered.restore`."""
        self._fetch_back()
        with torch.no_grad():
            for kind, vector in self._vectors.items():
                vector.copy_(before.vectors[kind])

    def _fetch_back(self) -> None:
        for tensor, place in zip(self._tensors, self._places, strict=True):
            if tensor.data_ptr() != place.data_ptr():
                tensor.data = place.copy_(tensor.detach())


def joined(tensors: Sequence[Tensor], others: Iterable[Tensor]) -> Scattered:
    """Move tensors end to end, unless one has gaps, or shares its memory with another one or with one of `others`."""
    own = {id(tensor) for tensor in tensors}
    places = [(*_place(tensor), True) for tensor in tensors if tensor.numel()]
    places += [(*_place(tensor), False) for tensor in others if tensor.numel() and id(tensor) not in own]
    end_of_own = end_of_any = 0
    for start, end, is_own in sorted(places):
        if start < (end_of_any if is_own else end_of_own):
            return Scattered(tensors)
        end_of_any = max(end, end_of_any)
        end_of_own = max(end, end_of_own) if is_own else end_of_own
    return Joined(tensors) if all(map(_is_dense, tensors)) else Scattered(tensors)


def _by_kind(tensors: Sequence[Tensor]) -> dict[_Kind, list[Tensor]]:
    groups: dict[_Kind, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.device, tensor.dtype].append(tensor)
    return groups


def _moved(alike: list[Tensor]) -> Tensor:
    """One vector that holds these tensors, which become views of it, each in the layout it had."""
    step = _BYTES // alike[0].element_size()
    starts, length = [], 0
    for tensor in alike:
        starts.append(length)
        length += -(-tensor.numel() // step) * step
    vector = torch.zeros(length, dtype=alike[0].dtype, device=alike[0].device)
    for tensor, start in zip(alike, starts, strict=True):
        place = vector.as_strided(tensor.shape, tensor.stride(), start)
        place.copy_(tensor)
        tensor.data = place
    return vector


def _place(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + _reach(tensor) * tensor.element_size()


def _is_dense(tensor: Tensor) -> bool:
    return _reach(tensor) == tensor.numel()


def _reach(tensor: Tensor) -> int:
    """How many values from its first to its last one in memory, those between them included."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
