"""Compare what arrives at the first batch norm with its running statistics."""

import torch
from torch import Tensor, nn

from driftproof.norms import BatchNorm, batch_norms, has_source_statistics

__all__ = ["FirstLayer"]


class _ReachedError(Exception):
    """Ends a forward pass at the layer of interest."""


class FirstLayer:
    """The first batch norm that a forward pass reaches.

    Args:
        model: A model in evaluation mode, which is run in part.
        images: A batch to find the layer with.
    """

    name: str | None
    """The layer's name; None if there is none, or its running statistics were never updated."""

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        self._model = model
        self._layers = {layer: name for name, layer in batch_norms(model) if has_source_statistics(layer)}
        self._reached: tuple[BatchNorm, Tensor] | None = None
        self._run(images)
        layer = None if self._reached is None else self._reached[0]
        self.name = None if layer is None or _is_untrained(layer) else self._layers[layer]

    def distance(self, images: Tensor) -> float:
        """Return how far the statistics of these images are from the running ones.

        The mean over channels of log(1 + J), with J the mean of the two Kullback-Leibler divergences between normal
        distributions. It is about 0.03 for training's own images, and below 1 for those of other domains.
        """
        self._run(images)
        assert self._reached is not None
        layer, arrived = self._reached
        assert layer.running_mean is not None
        assert layer.running_var is not None
        variance, mean = torch.var_mean(arrived.double(), dim=[0, *range(2, arrived.ndim)], correction=0)
        variance, expected = variance + layer.eps, layer.running_var.double() + layer.eps
        shift = (mean - layer.running_mean) ** 2
        divergence = ((variance + shift) / expected + (expected + shift) / variance - 2) / 4
        return float(divergence.log1p().mean())

    def _run(self, images: Tensor) -> None:
        self._reached = None
        handles = [layer.register_forward_pre_hook(self._stop) for layer in self._layers]
        try:
            with torch.no_grad():
                self._model(images)
        except _ReachedError:
            pass
        finally:
            for handle in handles:
                handle.remove()

    def _stop(self, layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, BatchNorm)
        self._reached = (layer, arguments[0])
        raise _ReachedError


def _is_untrained(layer: BatchNorm) -> bool:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return bool((layer.running_mean == 0).all() and (layer.running_var == 1).all())
