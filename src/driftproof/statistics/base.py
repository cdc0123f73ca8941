"""The base class of statistics rules."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from driftproof.components import Component, Step
from driftproof.distributed import Distributed
from driftproof.errors import ConfigurationError, ModelError
from driftproof.kernels import is_supported
from driftproof.network import BatchNormHook
from driftproof.norms import BatchNorm, has_source_statistics

__all__ = ["ProbedLogits", "Statistics", "can_fuse_selected", "check_source_statistics", "values_per_channel"]


class ProbedLogits(NamedTuple):
    """Logits of one batch with several kinds of statistics.

    Attributes:
        answered: The adapter's answer.
        probed: Of the frozen network with each of the `probed_shares`.
        trained: With the statistics of its training.
        same: With the statistics that the next batch gets; None where they were not tried.
    """

    answered: Tensor
    probed: tuple[Tensor, ...]
    trained: Tensor
    same: Tensor | None = None


class Statistics(Component):
    """Which statistics the batch-norm layers of a network normalize with.

    Args:
        of: A selection of the samples that batch statistics are taken from; None is all of them. It decides before the
            adapting network runs, so it may read `step.images`, `step.source_logits` and `step.source_features` only.
            Where it selects nothing, all samples count.

    Attributes:
        probes: Whether the rule wants extra passes that show what it would do, see `probing`. Then it has a buffer
            `asked`: whether this batch asks for them, and whether the one before did.
        probed_shares: The shares of the stream's statistics in these passes.
        wants_trial: Whether the rule wants to see the next batch once before it is answered, through `on_batch`.
    """

    probes = False
    probed_shares: tuple[float, ...] = ()
    wants_trial = False

    def __init__(self, of: Component | None = None) -> None:
        super().__init__()
        if of is not None and not callable(getattr(of, "weights", None)):
            raise ConfigurationError(f"Expected `of` to be a selection, but got {of!r}.")
        self.of = of

    def make_hook(self, index: int, name: str, layer: BatchNorm) -> BatchNormHook | None:
        """The hook of the batch-norm layer `name`, the `index`-th of the network; None leaves it alone."""
        raise NotImplementedError

    def trust(self, step: Step) -> Tensor | float:
        """How far averages over the batch can be trusted, in [0, 1]: a factor on the mean-entropy term."""
        return 1.0

    def find_holds(self) -> Tensor | None:
        """Why the last batches were not fit to learn from; None where they always are.

        Booleans, (3,): nothing has shifted, predictions are not balanced, one extra pass alone speaks for them.
        """
        return None

    def can_learn(self) -> Tensor | None:
        """Whether the last batches were fit to learn from, as a 0-d tensor; None is always."""
        holds = self.find_holds()
        return None if holds is None else ~holds.any()

    @contextmanager
    def probing(self, share: float) -> Iterator[None]:
        """Pass with this share of the stream's statistics; only asked where `probes`."""
        yield

    def judge_probe(self, logits: ProbedLogits, distributed: Distributed) -> Tensor:
        """Take note of such a pass between two steps, and return what to answer.

        Args:
            logits: The frozen network's of one batch, and the adapter's.
            distributed: The ranks that share the batch.
        """
        return logits.answered

    def sample_mask(self, step: Step) -> Tensor:
        """Which samples batch statistics are taken from, as a boolean mask."""
        assert self.of is not None  # only asked where there is a selection
        try:
            weights = self.of.weights(step)  # type: ignore[operator]  # the constructor checked it
        except AttributeError as error:
            raise ConfigurationError(
                f"Expected {self.of!r} to read the frozen network alone, since it decides what the adapting one "
                f'normalizes with, but {error}. Pass `network="source"` to the selection.'
            ) from error
        chosen: Tensor = getattr(weights, "attract", weights) > 0
        (number,) = step.distributed.sum(chosen.sum(dtype=torch.float32))
        return chosen | (number == 0)


def can_fuse_selected(layer: BatchNorm, x: Tensor, mask: Tensor) -> bool:
    """Whether one kernel computes the output of a layer from statistics of the samples that the mask selects.

    It selects whole samples: a mask of pixels has weights between 0 and 1 in most layers.
    """
    if mask.ndim != 1 or mask.dtype != torch.bool or torch.compiler.is_compiling():
        return False
    return layer.weight is not None and layer.bias is not None and is_supported(x)


def values_per_channel(inputs: Tensor) -> int:
    """How many values a batch norm averages per channel."""
    return inputs.numel() // max(inputs.shape[1], 1)


def check_source_statistics(rule: Statistics, name: str, layer: BatchNorm) -> None:
    """Refuse a layer that has no running statistics."""
    if not has_source_statistics(layer):
        raise ModelError(
            f"Expected batch-norm layer `{name}` to carry the running statistics of its training, which {rule} needs, "
            "but it keeps none. Use `statistics.Batch()`."
        )
