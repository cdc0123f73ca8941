"""Order of the images within a domain."""

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError

__all__ = ["LabelShifted", "Order", "Shuffled", "Stored", "make_permutation"]

Order = Callable[[Tensor, str, int], Tensor]
"""Maps labels, domain name and round to a permutation of the images. Must be deterministic."""


@dataclass(frozen=True)
class Stored:
    """Order of the file or array.

    Examples:
        >>> Stored()(torch.tensor([7, 7, 3]), "fog", 1).tolist()
        [0, 1, 2]
    """

    def __call__(self, labels: Tensor, domain: str, round: int) -> Tensor:
        """Return the identity permutation."""
        return torch.arange(len(labels))


@dataclass(frozen=True)
class Shuffled:
    """One fixed permutation per domain name, the same in every round and for every method.

    Use it for sets that are stored class by class: a batch of few classes has misleading statistics.

    Args:
        seed: Seed of the permutation.

    Examples:
        >>> order = Shuffled(seed=1)(torch.zeros(4), "fog", 1)
        >>> sorted(order.tolist())
        [0, 1, 2, 3]
    """

    seed: int = 0

    def __call__(self, labels: Tensor, domain: str, round: int) -> Tensor:
        """Return the permutation of this domain."""
        return torch.randperm(len(labels), generator=_generator(self.seed, domain))


@dataclass(frozen=True)
class LabelShifted:
    """Label shift: classes come in bursts.

    Time is divided into slots. Each class draws its share of every slot from a symmetric Dirichlet distribution, each
    image of the class draws its slot from these shares, and the images of a slot are shuffled. A small concentration
    gives one class after the other; a large one approaches `Shuffled`. The order is the same in every round.

    Args:
        concentration: Concentration δ of the Dirichlet distribution; 0.1 is a strong shift, 10 a mild one.
        seed: Seed of the shares and slots.
        slots: Number of time slots. More slots give shorter bursts and less overlap between classes.

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
        """Return the images sorted by slot, shuffled within each slot."""
        generator = _generator(self.seed, domain)
        draws = random.Random(generator.initial_seed())
        time = torch.rand(len(labels), generator=generator, dtype=torch.float64)
        for label in torch.unique(labels):
            members = (labels == label).nonzero().flatten()
            time[members] += torch.multinomial(
                self._sample_shares(draws), len(members), replacement=True, generator=generator
            )
        return time.argsort(stable=True)

    def _sample_shares(self, draws: random.Random) -> Tensor:
        # Normalized gamma variates, in log space because they underflow at small concentrations.
        # If X ~ Gamma(δ + 1) and U is uniform, X U^(1/δ) ~ Gamma(δ).
        logs = [
            math.log(draws.gammavariate(self.concentration + 1, 1)) + math.log(1 - draws.random()) / self.concentration
            for _ in range(self.slots)
        ]
        return torch.tensor(logs, dtype=torch.float64).softmax(dim=0)


def make_permutation(order: Order, labels: Tensor, domain: str, round: int) -> Tensor:
    """Call an order and check that it returns a permutation."""
    indices = order(labels, domain, round).long()
    if not torch.equal(indices.sort().values, torch.arange(len(labels))):
        raise ConfigurationError(
            f"Expected `order` to give every one of the {len(labels)} images of domain {domain} exactly once, "
            f"but {order} does not. Return a permutation of 0..{len(labels) - 1}."
        )
    return indices


def _generator(seed: int, domain: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{domain}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
