"""Find the normalization layers of a model."""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

__all__ = ["NORM_LAYERS", "BatchNorm", "batch_norms", "has_source_statistics", "norm_layers"]

# The base classes include the 1d, 2d and 3d layers, SyncBatchNorm, and subclasses from model libraries, such as a batch
# norm with a fused activation or a channels-first layer norm.
BatchNorm = _BatchNorm
NORM_LAYERS: tuple[type[nn.Module], ...] = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def norm_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Iterate over the names and normalization layers of a model, each layer once."""
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, NORM_LAYERS))


def batch_norms(model: nn.Module) -> Iterator[tuple[str, BatchNorm]]:
    """Iterate over the names and batch norms of a model, each layer once."""
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, BatchNorm))


def has_source_statistics(layer: BatchNorm) -> bool:
    """Return whether a batch norm has running statistics."""
    return layer.running_mean is not None and layer.running_var is not None
