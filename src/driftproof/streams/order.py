"""In which order the images of a domain arrive."""

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError

__all__ = ["LabelShifted", "Order", "Shuffled", "Stored", "arranged"]

Order = Callable[[Tensor, str, int], Tensor]
"""From the labels, the domain's name and the round to a permutation of the images; equal calls have equal results."""


@dataclass(frozen=True)
class Stored:
    """The order of the file or array.

    Examples:
        >>> Stored()(torch.tensor([7, 7, 3]), "fog", 1).tolist()
        [0, 1, 2]
    """

    def __call__(self, labels: Tensor, domain: str, round: int) -> Tensor:
        """The images as they are."""
        return torch.arange(len(labels))


@dataclass(frozen=True)
class Shuffled:
    """One fixed permutation per domain name, the same in every round and for every method.

    Sets that are stored class by class need it: a batch of few classes has misleading statistics.

    Args:
        seed: Seed of the permutation.

    Examples:
        >>> order = Shuffled(seed=1)(torch.zeros(4), "fog", 1)
        >>> sorted(order.tolist())
        [0, 1, 2, 3]
    """

    seed: int = 0

    def __call__(self, labels: Tensor, domain: str, round: int) -> Tensor:
        """The permutation of this domain."""
        return torch.randperm(len(labels), generator=_generator(self.seed, domain))


@dataclass(frozen=True)
class LabelShifted:
    """Classes come in bursts, as they do in the world.

    Time is cut into slots. Each class spreads over them with shares drawn from a symmetric Dirichlet distribution, each
    of its images falls into a slot by these shares, and a slot's images arrive shuffled. A small concentration gives
    one class after the other; a large one cannot be told from `Shuffled`. The order is the same in every round.

    Args:
        concentration: Of the Dirichlet distribution, δ; 0.1 is a strong shift, 10 a mild one.
        seed: Seed of the shares and of the images' places.
        slots: Number of time slots. More slots make shorter bursts of each class and keep classes better apart.

    Examples:
        >>> order = LabelShifted(0.1)(torch.tensor([0, 1, 0, 1]), "fog", 1)
        >>> sorted(order.tolist())
        [0, 1, 2, 3]
    """

    concentration: float
    seed: int = 0
    slots: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.concentration < math.inf:
            raise ConfigurationError(
                f"Expected `concentration` to be positive and finite, but got {self.concentration}."
            )
        if self.slots < 1:
            raise ConfigurationError(f"Expected `slots` to be at least 1, but got {self.slots}.")

    def __call__(self, labels: Tensor, domain: str, round: int) -> Tensor:
        """The images by slot, shuffled within each."""
        generator = _generator(self.seed, domain)
        draws = random.Random(generator.initial_seed())
        time = torch.rand(len(labels), generator=generator, dtype=torch.float64)
        for label in torch.unique(labels):
            places = (labels == label).nonzero().flatten()
            time[places] += torch.multinomial(self._shares(draws), len(places), replacement=True, generator=generator)
        return time.argsort(stable=True)

    def _shares(self, draws: random.Random) -> Tensor:
        # Gamma variates, normalized; as logarithms, since at a small concentration they are too small for a float.
        # If X ~ Gamma(δ + 1) and U is uniform, X U^(1/δ) ~ Gamma(δ).
        logarithms = [
            math.log(draws.gammavariate(self.concentration + 1, 1)) + math.log(1 - draws.random()) / self.concentration
            for _ in range(self.slots)
        ]
        return torch.tensor(logarithms, dtype=torch.float64).softmax(dim=0)


def arranged(order: Order, labels: Tensor, domain: str, round: int) -> Tensor:
    """What an order says, refused unless it is a permutation."""
    places = order(labels, domain, round).long()
    if not torch.equal(places.sort().values, torch.arange(len(labels))):
        raise ConfigurationError(
            f"Expected `order` to give every one of the {len(labels)} images of domain {domain} exactly once, "
            f"but {order} does not. Return a permutation of 0..{len(labels) - 1}."
        )
    return places


def _generator(seed: int, domain: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{domain}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
