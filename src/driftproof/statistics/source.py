"""Normalize with the statistics of training."""

from driftproof.norms import BatchNorm
from driftproof.statistics.base import Statistics

__all__ = ["Source"]


class Source(Statistics):
    """The running statistics that came with the model ("CBN")."""

    def __init__(self) -> None:
        super().__init__()

    def make_hook(self, index: int, name: str, layer: BatchNorm) -> None:
        """None: evaluation mode already does this."""
