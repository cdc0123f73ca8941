"""Keeps the buffers of a frozen model unchanged, whatever its forward does to them."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from driftproof.norms import BatchNorm

__all__ = ["BufferGuard"]


class BufferGuard(nn.Module):
    """A copy of the buffers that a model's own code may write: counters, caches, averages.

    Batch-norm statistics are left out: nothing writes those in evaluation mode.

    Args:
        model: The model to guard.

    Examples:
        >>> import torch
        >>> class Counting(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("seen", torch.zeros(()))
        >>> model = Counting()
        >>> with BufferGuard(model).preserved():
        ...     model.seen += 1
        >>> model.seen
        tensor(0.)
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._guarded = tuple(module for module in model.modules() if not isinstance(module, BatchNorm))
        for place, module in enumerate(self._guarded):
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self.register_buffer(_key(place, name), buffer.detach().clone())
        self._writers: tuple[int, ...] | None = None  # known after the first pass: to look at all modules takes long

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore every buffer and its value on exit."""
        places = range(len(self._guarded)) if self._writers is None else self._writers
        before = {place: dict(self._guarded[place]._buffers) for place in places}
        versions = {place: [_version(buffer) for buffer in buffers.values()] for place, buffers in before.items()}
        try:
            yield
        finally:
            for place, buffers in before.items():
                self._restore(place, buffers, versions[place])

    def _restore(self, place: int, buffers: dict[str, Tensor | None], versions: list[int]) -> None:
        module = self._guarded[place]
        if self._writers is None:
            self._writers = ()
        if (module._buffers or buffers) and place not in self._writers:
            self._writers = (*self._writers, place)
        if module._buffers or buffers:
            module._buffers.clear()
            module._buffers.update(buffers)
        for (name, buffer), version in zip(buffers.items(), versions, strict=True):
            if buffer is not None and buffer._version != version:
                buffer.copy_(self.get_buffer(_key(place, name)))


def _key(place: int, name: str) -> str:
    return f"{place}_{name}"


def _version(buffer: Tensor | None) -> int:
    """A number that changes whenever the values do."""
    return 0 if buffer is None else buffer._version
