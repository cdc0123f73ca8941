"""Stream that mixes images of unknown classes into every batch."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError
from driftproof.streams.batch import BatchPlan, BatchSlice
from driftproof.streams.continual import Continual
from driftproof.streams.domains import Domain, common_size
from driftproof.streams.order import Order, Shuffled, make_permutation
from driftproof.validation import check_choice

__all__ = ["OpenSet"]


class OpenSet(Continual):
    """Continual stream with unknown images, under the same shift, in every batch.

    Known images come first in a batch. The k-th block of known images of a domain is paired with the k-th block of
    unknown ones; a last block that is not full gets proportionally fewer. The list of unknown images is repeated or cut
    to the required length, then put in `order`.

    Choice where the paper is ambiguous: a batch has 100 known and 100 unknown images. Pass `batch_size=400` for the
    other reading, 200 and 200.

    With `mixing="random"` all images of a domain, known and unknown, are shuffled together and cut into batches, so
    that the share of unknown ones varies from batch to batch. Known images still come first in a batch.

    Args:
        known: Domains with the classes the model was trained on.
        unknown: One domain of other classes for each known one, under the same shift: `svhn-c/fog/5` goes with
            `cifar10-c/fog/5`, `fog` with `fog`.
        ratio: Share of unknown images in a batch.
        rounds: Number of passes over all domains.
        batch_size: Images per batch, known and unknown together.
        order: Order of the images within a domain; None for the stored order.
        limit: Use only the first `limit` known images of each domain, in that order.
        drop_last: Drop the last batch of a domain if it is not full.
        mixing: "even" or "random", see above; the random draw is the same in every round and for every method.
    """

    def __init__(
        self,
        known: Sequence[Domain],
        unknown: Sequence[Domain],
        *,
        ratio: float = 0.5,
        rounds: int = 1,
        batch_size: int = 200,
        order: Order | None = None,
        limit: int | None = None,
        drop_last: bool = False,
        mixing: str = "even",
    ) -> None:
        self.mixing = check_choice("mixing", mixing, ("even", "random"))
        if not 0 <= ratio < 1:
            raise ConfigurationError(f"Expected `ratio` to be at least 0 and below 1, but got {ratio}.")
        self.ratio = ratio
        self._unknown_size = round(ratio * batch_size)
        if batch_size >= 1 and self._unknown_size == batch_size:
            raise ConfigurationError(
                f"Expected `batch_size` to leave room for known images at a ratio of {ratio}, but got {batch_size}."
            )
        if batch_size >= 1 and ratio > 0 and self._unknown_size == 0:
            raise ConfigurationError(
                f"Expected `batch_size` to leave room for unknown images at a ratio of {ratio}, but got {batch_size}."
            )
        _check_pairs(known, unknown)
        self.unknown = tuple(unknown)
        super().__init__(known, rounds=rounds, batch_size=batch_size, order=order, limit=limit, drop_last=drop_last)
        common_size([self.domains[0], *self.unknown])

    @property
    def _known_size(self) -> int:
        return self.batch_size - self._unknown_size

    def _domain_plans(self, index: int, round: int, first: int) -> Iterator[BatchPlan]:
        images, indices = self.unknown[index].images, self._unknown_indices(index, round)
        if self.mixing == "random":
            yield from self._random_plans(index, round, first, indices)
            return
        for batch, plan in enumerate(super()._domain_plans(index, round, first), start=first):
            start = batch * self._unknown_size
            stop = start + self._num_unknown(len(plan.slices[0].indices))
            unknown = BatchSlice(images, indices[start:stop], known=False)
            yield replace(plan, slices=(*plan.slices, unknown)) if stop > start else plan

    def _random_plans(self, index: int, round: int, first: int, unknown: Tensor) -> Iterator[BatchPlan]:
        domain = self.domains[index]
        known = make_permutation(self.order, domain.images.labels, domain.name, round)[: self._num_images(domain)]
        unknown = unknown[: self._num_unknown(len(known))]
        places = Shuffled()(torch.empty(len(known) + len(unknown)), domain.name, round)
        for places_of_batch in torch.split(places, self.batch_size)[first : self.num_batches(domain)]:
            is_known = places_of_batch < len(known)
            slices = (
                domain.slice(known[places_of_batch[is_known]]),
                BatchSlice(self.unknown[index].images, unknown[places_of_batch[~is_known] - len(known)], known=False),
            )
            filled = tuple(each for each in slices if len(each.indices))
            yield BatchPlan(filled, domain.name, round, domain.size)

    def _unknown_indices(self, index: int, round: int) -> Tensor:
        domain = self.unknown[index]
        # Ignores `limit`, so that a limited stream starts with the same batches as the full one.
        needed = self._num_unknown(len(self.domains[index].images))
        repeated = torch.arange(needed) % len(domain.images)
        return repeated[make_permutation(self.order, domain.images.labels[repeated], domain.name, round)]

    def _num_unknown(self, num_known: int) -> int:
        full, rest = divmod(num_known, self._known_size)
        return full * self._unknown_size + round(self._unknown_size * rest / self._known_size)


def _check_pairs(known: Sequence[Domain], unknown: Sequence[Domain]) -> None:
    if len(known) != len(unknown):
        raise ConfigurationError(
            f"Expected one domain of unknown images for each of the {len(known)} known ones, but got {len(unknown)}."
        )
    for first, second in zip(known, unknown, strict=True):
        if first.shift_name != second.shift_name:
            raise ConfigurationError(
                f"Expected known and unknown images under the same shift, but {first.name} was paired with "
                f"{second.name}. Give both lists in the same order."
            )
