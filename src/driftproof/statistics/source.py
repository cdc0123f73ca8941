"""Normalize as on the day the model was trained."""

from driftproof.norms import BatchNorm
from driftproof.statistics.base import Statistics

__all__ = ["Source"]


class Source(Statistics):
    """The running statistics that came with the model ("CBN")."""

    def rule_for(self, index: int, name: str, layer: BatchNorm) -> None:
        """Evaluation mode already does this."""
