"""Domains one after the other, again and again."""

import copy
from collections.abc import Iterator, Sequence

from typing_extensions import Self

from driftproof.errors import ConfigurationError
from driftproof.streams.batch import Batch, Plan
from driftproof.streams.domains import Domain, common_size
from driftproof.streams.order import Order, Stored, arranged

__all__ = ["Continual"]


class Continual:
    """Every image of every domain, domain after domain, once per round.

    Args:
        domains: In the order in which they come.
        rounds: How often they all come by.
        batch_size: Images per batch; the last batch of a domain may be smaller.
        order: In which order a domain's images come; None for the stored order.
        limit: Only the first so many images of each domain, in that order.
        drop_last: Leave out batches that are not full.

    Examples:
        >>> import torch
        >>> class Black:
        ...     name, labels = "black", torch.arange(5)
        ...     __len__ = lambda self: 5
        ...     batch = lambda self, indices: torch.zeros(len(indices), 3, 2, 2, dtype=torch.uint8)
        >>> stream = Continual([Domain("dusk", Black()), Domain("night", Black())], rounds=10, batch_size=3)
        >>> [(batch.round, batch.domain, batch.labels.tolist()) for batch in stream.skip(37)]
        [(10, 'dusk', [3, 4]), (10, 'night', [0, 1, 2]), (10, 'night', [3, 4])]
    """

    def __init__(
        self,
        domains: Sequence[Domain],
        *,
        rounds: int = 1,
        batch_size: int = 200,
        order: Order | None = None,
        limit: int | None = None,
        drop_last: bool = False,
    ) -> None:
        for name, count in {"rounds": rounds, "batch_size": batch_size, "limit": limit}.items():
            if count is not None and count < 1:
                raise ConfigurationError(f"Expected `{name}` to be at least 1, but got {count}.")
        self.domains = tuple(domains)
        self.rounds = rounds
        self.batch_size = batch_size
        self.order = Stored() if order is None else order
        self.limit = limit
        self.drop_last = drop_last
        self.size = common_size(self.domains)
        self._skipped = 0
        if self.batches_per_round == 0:
            raise ConfigurationError(
                f"Expected a domain to fill at least one batch of {batch_size}, but none does. "
                "Choose a smaller `batch_size`, or `drop_last=False`."
            )

    @property
    def batches_per_round(self) -> int:
        """Number of batches in which every domain comes by once."""
        return sum(self.batches_of(domain) for domain in self.domains)

    def batches_of(self, domain: Domain) -> int:
        """Number of batches a domain takes."""
        full, rest = divmod(self._count(domain), self._closed_size)
        return full + (rest > 0 and not self.drop_last)

    def __len__(self) -> int:
        return self.rounds * self.batches_per_round - self._skipped

    def __iter__(self) -> Iterator[Batch]:
        for plan in self.plans():
            yield plan.read()

    def plans(self) -> Iterator[Plan]:
        """The batches to come, unread."""
        rounds, to_skip = divmod(self._skipped, self.batches_per_round)
        for round in range(rounds + 1, self.rounds + 1):
            for index, domain in enumerate(self.domains):
                batches = self.batches_of(domain)
                if to_skip < batches:
                    yield from self._domain_plans(index, round, to_skip)
                to_skip = max(to_skip - batches, 0)

    def skip(self, batches: int) -> Self:
        """The stream without its next `batches` batches, which are never read."""
        if not 0 <= batches <= len(self):
            raise ConfigurationError(f"Expected `batches` to be in 0..{len(self)}, but got {batches}.")
        rest = copy.copy(self)
        rest._skipped += batches
        return rest

    def starting_at(self, round: int, domain_index: int = 0, batch_index: int = 0) -> Self:
        """The whole stream from one of its batches on.

        Args:
            round: Counted from 1.
            domain_index: Place of the domain in `domains`, counted from 0.
            batch_index: Place of the batch in the domain, counted from 0.
        """
        _check_place("round", round, 1, self.rounds)
        _check_place("domain_index", domain_index, 0, len(self.domains) - 1)
        _check_place("batch_index", batch_index, 0, self.batches_of(self.domains[domain_index]) - 1)
        before = sum(self.batches_of(domain) for domain in self.domains[:domain_index])
        rest = copy.copy(self)
        rest._skipped = (round - 1) * self.batches_per_round + before + batch_index
        return rest

    @property
    def _closed_size(self) -> int:
        return self.batch_size

    def _count(self, domain: Domain) -> int:
        return min(len(domain.images), self.limit or len(domain.images))

    def _domain_plans(self, index: int, round: int, first: int) -> Iterator[Plan]:
        domain, size = self.domains[index], self._closed_size
        places = arranged(self.order, domain.images.labels, domain.name, round)[: self._count(domain)]
        for batch in range(first, self.batches_of(domain)):
            part = domain.part(places[batch * size : (batch + 1) * size])
            yield Plan((part,), domain.name, round, domain.size)


def _check_place(name: str, place: int, first: int, last: int) -> None:
    if not first <= place <= last:
        raise ConfigurationError(f"Expected `{name}` to be in {first}..{last}, but got {place}.")
