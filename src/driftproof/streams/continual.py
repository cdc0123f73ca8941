"""Stream over domains in a fixed order, repeated in rounds."""

import copy
from collections.abc import Iterator, Sequence

from typing_extensions import Self

from driftproof.errors import ConfigurationError
from driftproof.streams.batch import BatchPlan, StreamBatch
from driftproof.streams.domains import Domain, common_size
from driftproof.streams.order import Order, Stored, make_permutation

__all__ = ["Continual"]


class Continual:
    """Stream that shows every image of every domain once per round, domain after domain.

    Args:
        domains: Domains in stream order.
        rounds: Number of passes over all domains.
        batch_size: Images per batch; the last batch of a domain may be smaller.
        order: Order of the images within a domain; None for the stored order.
        limit: Use only the first `limit` images of each domain, in that order.
        drop_last: Drop the last batch of a domain if it is not full.

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
        """Number of batches in one round."""
        return sum(self.num_batches(domain) for domain in self.domains)

    def num_batches(self, domain: Domain) -> int:
        """Return the number of batches of a domain."""
        full, rest = divmod(self._num_images(domain), self._known_size)
        return full + (rest > 0 and not self.drop_last)

    def __len__(self) -> int:
        return self.rounds * self.batches_per_round - self._skipped

    def __iter__(self) -> Iterator[StreamBatch]:
        for plan in self.plans():
            yield plan.read()

    def plans(self) -> Iterator[BatchPlan]:
        """Yield the plan of every remaining batch."""
        rounds, to_skip = divmod(self._skipped, self.batches_per_round)
        for round in range(rounds + 1, self.rounds + 1):
            for index, domain in enumerate(self.domains):
                batches = self.num_batches(domain)
                if to_skip < batches:
                    yield from self._domain_plans(index, round, to_skip)
                to_skip = max(to_skip - batches, 0)

    def skip(self, batches: int) -> Self:
        """Return the stream without its next `batches` batches, which are not read."""
        if not 0 <= batches <= len(self):
            raise ConfigurationError(f"Expected `batches` to be in 0..{len(self)}, but got {batches}.")
        return self._without(self._skipped + batches)

    def start_from(self, round: int, domain_index: int = 0, batch_index: int = 0) -> Self:
        """Return the stream from the given batch to its end.

        Args:
            round: Counted from 1.
            domain_index: Index of the domain in `domains`.
            batch_index: Index of the batch within the domain.
        """
        _check_range("round", round, 1, self.rounds)
        _check_range("domain_index", domain_index, 0, len(self.domains) - 1)
        _check_range("batch_index", batch_index, 0, self.num_batches(self.domains[domain_index]) - 1)
        before = sum(self.num_batches(domain) for domain in self.domains[:domain_index])
        return self._without((round - 1) * self.batches_per_round + before + batch_index)

    def _without(self, skipped: int) -> Self:
        rest = copy.copy(self)
        vars(rest)["_skipped"] = skipped
        return rest

    @property
    def _known_size(self) -> int:
        return self.batch_size

    def _num_images(self, domain: Domain) -> int:
        return min(len(domain.images), self.limit or len(domain.images))

    def _domain_plans(self, index: int, round: int, first: int) -> Iterator[BatchPlan]:
        domain, size = self.domains[index], self._known_size
        indices = make_permutation(self.order, domain.images.labels, domain.name, round)[: self._num_images(domain)]
        for batch in range(first, self.num_batches(domain)):
            known = domain.slice(indices[batch * size : (batch + 1) * size])
            yield BatchPlan((known,), domain.name, round, domain.size)


def _check_range(name: str, value: int, first: int, last: int) -> None:
    if not first <= value <= last:
        raise ConfigurationError(f"Expected `{name}` to be in {first}..{last}, but got {value}.")
