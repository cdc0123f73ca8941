"""How one batch-norm layer gets its statistics."""

from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from driftproof.distributed import Distributed
from driftproof.network.forward_override import is_overridden, replace_forward
from driftproof.norms import BatchNorm

__all__ = ["BatchNormHook", "PassSettings", "StatisticsRule", "hooked_forward"]

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class PassSettings:
    """How the current pass takes its statistics; shared by the hooks of one network.

    Attributes:
        mask: Which samples count in batch statistics, boolean, (N,) or (N, H, W); None is all of them.
        of_training: Whether every layer normalizes with the statistics of its training.
        learns: Whether the method learns from the pass; if not, it only predicts.
    """

    def __init__(self) -> None:
        # On the instance, since compiled code is compiled anew when an attribute comes into being.
        self.mask: Tensor | None = None
        self.of_training = False
        self.learns = True


class BatchNormHook(nn.Module):
    """Decides, for one batch-norm layer and one forward pass, which statistics that layer uses.

    A plain `nn.BatchNorm` layer runs `normalize` in place of its own forward. Any other subclass runs its own forward
    with its running statistics swapped by `pre_forward`; they are back after the pass, so between passes the model is
    an ordinary one. Buffers of a hook change only in `commit`, never during a pass.

    Attributes:
        distributed: The ranks that share the batch.
        settings: How the current pass takes its statistics.
        handle: The pre-forward hook on the layer, where one is registered.
    """

    def __init__(self, layer: BatchNorm) -> None:
        super().__init__()
        self._layer = (layer,)  # in a tuple: the layer belongs to the model and is no child of its hook
        self._swapped: list[Tensor | None] = []  # the layer's own statistics while a pass has others in their place
        self.handle: RemovableHandle | None = None
        self.distributed = Distributed()
        self.settings = PassSettings()

    @property
    def layer(self) -> BatchNorm:
        """The batch-norm layer."""
        return self._layer[0]

    @property
    def source_statistics(self) -> tuple[Tensor | None, Tensor | None]:
        """The mean and variance that came with the model."""
        mean, variance = self._swapped or (self.layer.running_mean, self.layer.running_var)
        return mean, variance

    def normalize(self, layer: BatchNorm, x: Tensor) -> Tensor:
        """The output of a plain layer."""
        raise NotImplementedError

    def pre_forward(self, layer: BatchNorm, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Called before the forward of any other layer: set its statistics; may return other inputs."""
        raise NotImplementedError

    def set_statistics(self, mean: Tensor | None, variance: Tensor | None) -> None:
        """Have the layer normalize with these until the pass is over; None is the batch's own."""
        buffers = self.layer._buffers  # attribute access on a module is slow, and this runs for every layer
        if not self._swapped:
            self._swapped.extend((buffers["running_mean"], buffers["running_var"]))
        buffers["running_mean"], buffers["running_var"] = mean, variance

    def attach(self) -> None:
        """Take over the layer's statistics."""
        if type(self.layer) in _PLAIN and not is_overridden(self.layer):
            replace_forward(self.layer, hooked_forward, self)
        else:
            self.handle = self.layer.register_forward_pre_hook(self._call, with_kwargs=True)

    def _call(
        self, layer: BatchNorm, inputs: tuple[Tensor, ...], named: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]] | None:
        if self.uses_training:
            self.restore()
            return None
        # Most models pass a layer its input by position, some by name.
        entered = self.pre_forward(layer, inputs or tuple(named.values())[:1])
        if entered is None:
            return None
        return (entered, named) if inputs else ((), named | dict(zip(named, entered, strict=False)))

    def restore(self) -> None:
        """Give the layer its own statistics back."""
        if self._swapped:
            buffers = self.layer._buffers
            buffers["running_mean"], buffers["running_var"] = self._swapped
            self._swapped.clear()

    @property
    def uses_training(self) -> bool:
        """Whether the layer normalizes with the statistics of its training in this pass, having some."""
        return self.settings.of_training and self.source_statistics[0] is not None

    @property
    def tracks_stream(self) -> bool:
        """Whether the hook keeps statistics of the stream, in `commit`."""
        return type(self).commit is not BatchNormHook.commit

    def reset(self) -> None:
        """Forget the statistics of the stream."""

    def commit(self, learned: Tensor | None = None) -> None:
        """Keep what the last pass saw of the stream.

        Args:
            learned: Whether something was learned from a memory, as a 0-d tensor; None without a memory.
        """

    def rollback(self) -> None:
        """Drop what the last pass saw of the stream."""


def hooked_forward(
    layer: BatchNorm, hook: BatchNormHook, input: Tensor
) -> Tensor:  # models may call it by torch's name
    """The forward of a plain batch-norm layer under a hook."""
    layer._check_input_dim(input)  # type: ignore[no-untyped-call]
    if hook.settings.of_training and hook.uses_training:
        return type(layer).forward(layer, input)
    return hook.normalize(layer, input)


class StatisticsRule(Protocol):
    """What a network asks of `driftproof.statistics`."""

    def make_hook(self, index: int, name: str, layer: BatchNorm) -> BatchNormHook | None:
        """The hook of one batch-norm layer; None leaves the layer alone."""
