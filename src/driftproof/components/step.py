"""What a part may read while one batch is processed."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from driftproof.augment import Augment
from driftproof.distributed import Distributed
from driftproof.errors import ModelError
from driftproof.network import Network
from driftproof.predictions import confidence_change, log_probabilities, logit_change, upcast

__all__ = ["Step", "batch_seed", "flat"]

_Value = TypeVar("_Value")


class _once(Generic[_Value]):  # noqa: N801  # reads as what it decorates with
    """A property that is computed when it is first asked for.

    As `functools.cached_property`, whose lock (Python 3.11 still has one) torch.compile cannot trace.
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, step: object, owner: type) -> _Value:
        value = step.__dict__[self._name] = self._compute(step)
        return value


class Step:
    """One batch on its way through an adapter.

    Everything expensive is computed when a part first asks for it and shared by all parts; the frozen network, for
    one, runs only if somebody compares with it.

    Attributes:
        images: The batch.
        network: The adapting network θ_a.
        source: The frozen network θ_o.
        parameters: What may move in `network`.
        source_parameters: The same parameters where they started, in `source`.
        index: How many batches were processed before this one.
        alike: Whether the two networks still hold the same weights and follow the same rule.
        answer: What the adapter will return; the logits, unless the loss answers for a teacher.
        weights: What the selection gave each sample; one each until it has run.
    """

    def __init__(
        self,
        images: Tensor,
        *,
        network: Network,
        source: Network,
        parameters: tuple[nn.Parameter, ...],
        source_parameters: tuple[nn.Parameter, ...],
        index: int = 0,
        seed: int = 0,
        alike: bool = False,
        needs_features: bool = False,
        generator: torch.Generator | None = None,
        beside: torch.cuda.Stream | None = None,
    ) -> None:
        self.images = images
        self.network = network
        self.source = source
        self.parameters = parameters
        self.source_parameters = source_parameters
        self.index = index
        self.alike = alike
        self._seed = seed
        self._generator = generator
        self._features: Tensor | None = None
        with self._comparing(beside):
            if needs_features:
                self.logits, self._features = network.with_features(images)
            else:
                self.logits = network(images)
        self.answer = self.logits
        self.weights = torch.ones_like(upcast(self.logits[:, 0].detach()))

    @contextmanager
    def _comparing(self, beside: torch.cuda.Stream | None) -> Iterator[None]:
        """Have the frozen network see the batch on a stream of its own meanwhile, if there is one."""
        if beside is None:
            yield
            return
        here = torch.cuda.current_stream(beside.device)
        beside.wait_stream(here)
        with torch.cuda.stream(beside), torch.no_grad():
            self.source_logits = self.source(self.images)
        yield
        here.wait_stream(beside)

    @property
    def distributed(self) -> Distributed:
        """Among whom the batch is shared out: what a part computes over samples, it computes over theirs."""
        return self.network.distributed

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self.logits.shape[1]

    @property
    def features(self) -> Tensor:
        """What entered the classifier, (N, D); only for parts that declare `needs_features`."""
        if self._features is None:
            raise ModelError("A part that reads features must declare `needs_features = True`.")
        return self._features

    @_once
    def log_probabilities(self) -> Tensor:
        """Ln ŷ of the adapting network, with its graph even where the first to ask needs none."""
        with torch.set_grad_enabled(self.logits.requires_grad):
            return log_probabilities(self.logits)

    @_once
    def probabilities(self) -> Tensor:
        """ŷ, as `log_probabilities`."""
        with torch.set_grad_enabled(self.logits.requires_grad):
            return self.log_probabilities.exp()

    @_once
    def source_logits(self) -> Tensor:
        """z̃ of the frozen network on the same batch; never part of a graph."""
        with torch.no_grad():
            return self.source(self.images)

    @_once
    def confidence_change(self) -> Tensor:
        """ŷ^{c_o} − ỹ^{c_o}: how far adaptation raised the confidence in the frozen network's class.

        Zero while the networks are alike: what they differ by then is the rounding of different kernels.
        """
        gain = confidence_change(self.log_probabilities.detach(), self.source_logits)
        return torch.zeros_like(gain) if self.alike else gain

    @_once
    def logit_change(self) -> Tensor:
        """z^{c_o} − z̃^{c_o}: the same for the logits of that class."""
        gain = logit_change(self.logits.detach(), self.source_logits)
        return torch.zeros_like(gain) if self.alike else gain

    def view(self, augment: Augment) -> Tensor:
        """A random view of the batch; on each rank, its rows of what one process would see of all of it."""
        return self.distributed.map_global_batch(self.images, lambda images: augment(images, self.generator))

    def novelty(self) -> Tensor:
        """How far confidence fell where the method compares with θ_o; one less the largest probability elsewhere."""
        if self.compared_with_source:
            return 0 - self.confidence_change  # negated, what did not fall would be −0
        return 1 - self.log_probabilities.detach().amax(dim=1).exp()

    @property
    def compared_with_source(self) -> bool:
        """Whether anybody asked for the frozen network's logits."""
        return "source_logits" in self.__dict__

    @_once
    def generator(self) -> torch.Generator:
        """The random numbers of this batch: a function of the seed and the batch's index alone.

        So a replay, a resumed run and a run that skipped a bad batch all draw the same numbers, and the only state
        there is to save is the index.
        """
        generator = self._generator
        if generator is None:
            generator = torch.Generator(self.images.device)
            generator.manual_seed(batch_seed(self._seed, self.index))
        return generator

    @property
    def drew(self) -> bool:
        """Whether anybody asked for random numbers."""
        return "generator" in self.__dict__


def batch_seed(seed: int, index: int) -> int:
    """What the random numbers of the `index`-th batch are seeded with."""
    return (seed * 0x9E3779B97F4A7C15 + index) % 2**63


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All tensors as one vector: one operation where a loop would launch one per tensor."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
