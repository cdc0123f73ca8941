"""What every axis of a method is made of: the part, the step it reads, the source data it prepares from."""

from driftproof.components.component import Component, Compose
from driftproof.components.prepare_context import PrepareContext, Progress, SourceBatches, supervised_loss
from driftproof.components.step import Step, batch_seed, flat

__all__ = [
    "Component",
    "Compose",
    "PrepareContext",
    "Progress",
    "SourceBatches",
    "Step",
    "batch_seed",
    "flat",
    "supervised_loss",
]
