"""What the statistics rules have in common."""

from torch import Tensor

from driftproof.components import Component
from driftproof.errors import ModelError
from driftproof.network import BatchNormHook
from driftproof.norms import BatchNorm, has_source_statistics

__all__ = ["Statistics", "require_source_statistics", "values_per_channel"]


class Statistics(Component):
    """Which statistics the batch-norm layers of a network normalize with."""

    def rule_for(self, index: int, name: str, layer: BatchNorm) -> BatchNormHook | None:
        """The rule of the batch-norm layer `name`, the `index`-th of the network; None leaves it alone."""
        raise NotImplementedError


def values_per_channel(inputs: Tensor) -> int:
    """Over how many numbers a batch norm would average."""
    return inputs.numel() // max(inputs.shape[1], 1)


def require_source_statistics(rule: Statistics, name: str, layer: BatchNorm) -> None:
    """Refuse a layer that never kept running statistics."""
    if not has_source_statistics(layer):
        raise ModelError(
            f"Expected batch-norm layer `{name}` to carry the running statistics of its training, which {rule} needs, "
            "but it keeps none. Use `statistics.Batch()`."
        )
