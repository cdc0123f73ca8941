"""The rule by which one batch-norm layer chooses its statistics."""

from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from driftproof.distributed import Distributed
from driftproof.norms import BatchNorm

__all__ = ["BatchNormHook", "StatisticsRule"]


class BatchNormHook(nn.Module):
    """Decides, for one batch-norm layer and one forward pass, which statistics that layer uses.

    The layer's own running statistics are swapped while the network runs and are back afterwards, so between passes the
    model is an ordinary one. What a rule remembers (buffers) changes only in `commit`, never during a pass.

    Attributes:
        distributed: Among whom the batch is shared out.
        handle: What the layer knows the rule by, once it is attached.
    """

    def __init__(self, layer: BatchNorm) -> None:
        super().__init__()
        self._layer = (layer,)  # in a tuple: the layer belongs to the model, it is no child of its rule
        self._source: list[Tensor | None] = []  # while a pass runs: what the layer came with
        self.handle: RemovableHandle | None = None
        self.distributed = Distributed()

    @property
    def layer(self) -> BatchNorm:
        """The batch-norm layer this rule belongs to."""
        return self._layer[0]

    @property
    def source_statistics(self) -> tuple[Tensor | None, Tensor | None]:
        """The mean and variance that came with the model."""
        mean, variance = self._source or (self.layer.running_mean, self.layer.running_var)
        return mean, variance

    def use(self, mean: Tensor | None, variance: Tensor | None) -> None:
        """Make the layer normalize with these until the pass is over; None means with the batch's own."""
        buffers = self.layer._buffers  # a module's attribute access is slow, and this runs for every layer
        if not self._source:
            self._source.extend((buffers["running_mean"], buffers["running_var"]))
        buffers["running_mean"], buffers["running_var"] = mean, variance

    def enter(self, layer: BatchNorm, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Called before the layer runs; may return other inputs."""
        raise NotImplementedError

    def attach(self) -> None:
        """Start deciding."""
        self.handle = self.layer.register_forward_pre_hook(self._called, with_kwargs=True)

    def _called(
        self, layer: BatchNorm, inputs: tuple[Tensor, ...], named: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]] | None:
        # Most models hand a layer its input by place, some by name.
        entered = self.enter(layer, inputs or tuple(named.values())[:1])
        if entered is None:
            return None
        return (entered, named) if inputs else ((), named | dict(zip(named, entered, strict=False)))

    def leave(self) -> None:
        """Give the layer its own statistics back."""
        if self._source:
            buffers = self.layer._buffers
            buffers["running_mean"], buffers["running_var"] = self._source
            self._source.clear()

    def begin(self) -> None:
        """Forget everything seen."""

    def commit(self) -> None:
        """Keep what the last pass saw."""

    def discard(self) -> None:
        """Drop what the last pass saw."""


class StatisticsRule(Protocol):
    """What a network asks of `driftproof.statistics`."""

    def rule_for(self, index: int, name: str, layer: BatchNorm) -> BatchNormHook | None:
        """The rule of one batch-norm layer; None where the layer is left alone."""
