"""Which layers of a network normalize, and how."""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

__all__ = ["NORM_LAYERS", "BatchNorm", "batch_norms", "has_source_statistics", "norm_layers"]

# The shared bases cover the 1-, 2- and 3-dimensional layers, SyncBatchNorm, and the subclasses that model
# libraries derive from them (a batch norm with its activation built in, a channels-first layer norm).
BatchNorm = _BatchNorm
NORM_LAYERS: tuple[type[nn.Module], ...] = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def norm_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The normalization layers of `model` with their names, each once, in the order of registration."""
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, NORM_LAYERS))


def batch_norms(model: nn.Module) -> Iterator[tuple[str, BatchNorm]]:
    """The batch-norm layers of `model` with their names, each once, in the order of registration."""
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, BatchNorm))


def has_source_statistics(layer: BatchNorm) -> bool:
    """Whether a batch-norm layer carries the running statistics of its training."""
    return layer.running_mean is not None and layer.running_var is not None
