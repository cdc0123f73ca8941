"""Many tensors as few vectors, so that a decision about all of them is a handful of operations."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Flat"]

_Kind = tuple[torch.device, torch.dtype]


class Flat:
    """A copy of tensors, laid end to end: one vector for each device and type among them.

    Examples:
        >>> now, before = [torch.ones(2), torch.ones(3)], Flat([torch.zeros(2), torch.zeros(3)])
        >>> Flat(now).where(torch.tensor(False), before).pour(now)
        >>> now
        [tensor([0., 0.]), tensor([0., 0., 0.])]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        with torch.no_grad():
            self._vectors = {
                kind: torch.cat([tensor.reshape(-1) for tensor in alike]) for kind, alike in _by_kind(tensors).items()
            }

    def fractional(self) -> list[Tensor]:
        """The vectors of fractional numbers."""
        return [vector for vector in self._vectors.values() if vector.is_floating_point()]

    def where(self, condition: Tensor, other: "Flat") -> "Flat":
        """These values where the condition holds, else those of `other`; changes and returns itself."""
        for kind, vector in self._vectors.items():
            self._vectors[kind] = torch.where(condition, vector, other._vectors[kind])
        return self

    def pour(self, tensors: Sequence[Tensor]) -> None:
        """Write the values into tensors of the same shapes, in the same order."""
        with torch.no_grad():
            for kind, alike in _by_kind(tensors).items():
                pieces = torch.split(self._vectors[kind], [tensor.numel() for tensor in alike])
                torch._foreach_copy_(alike, [piece.view(like.shape) for piece, like in zip(pieces, alike, strict=True)])


def _by_kind(tensors: Sequence[Tensor]) -> dict[_Kind, list[Tensor]]:
    groups: dict[_Kind, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.device, tensor.dtype].append(tensor)
    return groups
