"""What every axis of a method is made of: the component, the step it reads, the source data it prepares from."""

from driftproof.components.beside import run_beside
from driftproof.components.component import Component, Compose
from driftproof.components.detection import Detection
from driftproof.components.prepare_context import PrepareContext, Progress, SourceBatches, supervised_loss
from driftproof.components.step import Step, batch_seed, flatten

__all__ = [
    "Component",
    "Compose",
    "Detection",
    "PrepareContext",
    "Progress",
    "SourceBatches",
    "Step",
    "batch_seed",
    "flatten",
    "run_beside",
    "supervised_loss",
]
