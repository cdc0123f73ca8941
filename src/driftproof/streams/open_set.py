"""The unknown among the known."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError
from driftproof.streams.batch import Part, Plan
from driftproof.streams.continual import Continual
from driftproof.streams.domains import Domain, common_size
from driftproof.streams.order import Order, arranged

__all__ = ["OpenSet"]


class OpenSet(Continual):
    """A continual stream with images of unknown classes in every batch, of the same appearance as the known ones.

    Closed images come first in a batch. A domain's k-th block of closed images meets the k-th of unknown ones;
    a last block that is not full meets proportionally fewer. The list of unknown images is repeated, or cut, to the
    length that the closed images ask for, and then put in `order`.

    Open choices taken: by default a batch is 100 closed and 100 unknown images. For the other reading of the paper, 200
    and 200, pass `batch_size=400`.

    Args:
        closed: Domains whose classes the model was taught.
        unknown: As many domains of other classes; `svhn-c/fog/5` goes with `cifar10-c/fog/5`, `fog` with `fog`.
        ratio: Share of unknown images in a batch.
        rounds: How often all domains come by.
        batch_size: Images per batch, closed and unknown together.
        order: In which order a domain's images come; None for the stored order.
        limit: Only the first so many closed images of each domain, in that order.
        drop_last: Leave out batches that are not full.
    """

    def __init__(
        self,
        closed: Sequence[Domain],
        unknown: Sequence[Domain],
        *,
        ratio: float = 0.5,
        rounds: int = 1,
        batch_size: int = 200,
        order: Order | None = None,
        limit: int | None = None,
        drop_last: bool = False,
    ) -> None:
        if not 0 <= ratio < 1:
            raise ConfigurationError(f"Expected `ratio` to be at least 0 and below 1, but got {ratio}.")
        self.ratio = ratio
        self._unknown_size = round(ratio * batch_size)
        if batch_size >= 1 and self._unknown_size == batch_size:
            raise ConfigurationError(
                f"Expected `batch_size` to leave room for closed images at a ratio of {ratio}, but got {batch_size}."
            )
        _check_pairs(closed, unknown)
        self.unknown = tuple(unknown)
        super().__init__(closed, rounds=rounds, batch_size=batch_size, order=order, limit=limit, drop_last=drop_last)
        common_size([self.domains[0], *self.unknown])

    @property
    def _closed_size(self) -> int:
        return self.batch_size - self._unknown_size

    def _domain_plans(self, index: int, round: int, first: int) -> Iterator[Plan]:
        images, places = self.unknown[index].images, self._unknown_places(index, round)
        for batch, plan in enumerate(super()._domain_plans(index, round, first), start=first):
            start = batch * self._unknown_size
            stop = start + self._unknown_beside(len(plan.parts[0].indices))
            beside = Part(images, places[start:stop], known=False)
            yield replace(plan, parts=(*plan.parts, beside)) if stop > start else plan

    def _unknown_places(self, index: int, round: int) -> Tensor:
        domain = self.unknown[index]
        # Without the limit, so that a limited stream begins like the whole one.
        needed = self._unknown_beside(len(self.domains[index].images))
        repeated = torch.arange(needed) % len(domain.images)
        return repeated[arranged(self.order, domain.images.labels[repeated], domain.name, round)]

    def _unknown_beside(self, closed: int) -> int:
        full, rest = divmod(closed, self._closed_size)
        return full * self._unknown_size + round(self._unknown_size * rest / self._closed_size)


def _check_pairs(closed: Sequence[Domain], unknown: Sequence[Domain]) -> None:
    if len(closed) != len(unknown):
        raise ConfigurationError(
            f"Expected one domain of unknown images for each of the {len(closed)} closed ones, but got {len(unknown)}."
        )
    for known, other in zip(closed, unknown, strict=True):
        if known.appearance != other.appearance:
            raise ConfigurationError(
                f"Expected closed and unknown images of the same appearance, but {known.name} was paired with "
                f"{other.name}. Give both lists in the same order."
            )
