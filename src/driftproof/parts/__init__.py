"""What every axis of a method is made of: the part, the step it reads, the source data it prepares from."""

from driftproof.parts.part import Part, Several
from driftproof.parts.preparation import Preparation, Progress, SourceBatches, supervised_loss
from driftproof.parts.step import Step, flat, seed_of

__all__ = ["Part", "Preparation", "Progress", "Several", "SourceBatches", "Step", "flat", "seed_of", "supervised_loss"]
