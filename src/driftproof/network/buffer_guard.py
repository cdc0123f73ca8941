"""What a frozen model keeps of its own stays as it was, whatever its passes do to it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from driftproof.norms import BatchNorm

__all__ = ["BufferGuard"]


class BufferGuard(nn.Module):
    """A copy of the buffers that a model's own code may write: counters, caches, averages.

    The statistics of batch norms are not among them: in evaluation mode nothing writes those.

    Args:
        model: As it is to stay.

    Examples:
        >>> import torch
        >>> class Counting(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("seen", torch.zeros(()))
        >>> model = Counting()
        >>> with Keepsake(model).kept():
        ...     model.seen += 1
        >>> model.seen
        tensor(0.)
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._modules_kept = tuple(module for module in model.modules() if not isinstance(module, BatchNorm))
        for place, module in enumerate(self._modules_kept):
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self.register_buffer(_key(place, name), buffer.detach().clone())

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A passage after which the model has the buffers it came with, holding what they held."""
        before = [dict(module._buffers) for module in self._modules_kept]
        versions = [{name: _version(buffer) for name, buffer in buffers.items()} for buffers in before]
        try:
            yield
        finally:
            for place, (module, buffers) in enumerate(zip(self._modules_kept, before, strict=True)):
                if module._buffers or buffers:
                    module._buffers.clear()
                    module._buffers.update(buffers)
                for name, buffer in buffers.items():
                    if buffer is not None and _version(buffer) != versions[place][name]:
                        buffer.copy_(self.get_buffer(_key(place, name)))


def _key(place: int, name: str) -> str:
    return f"{place}_{name}"


def _version(buffer: Tensor | None) -> int:
    """A number that changes whenever the values do."""
    return 0 if buffer is None else buffer._version
