"""Training of source models, as the paper's were trained."""

from driftproof.training.augmix import augmix
from driftproof.training.loss import augmix_loss, jensen_shannon
from driftproof.training.recipes import CIFAR_RESNET50, RESNEXT_AUGMIX, TINY_RESNET50, WRN_AUGMIX, Recipe
from driftproof.training.trainer import EpochRecord, Trainer

__all__ = [
    "CIFAR_RESNET50",
    "RESNEXT_AUGMIX",
    "TINY_RESNET50",
    "WRN_AUGMIX",
    "EpochRecord",
    "Recipe",
    "Trainer",
    "augmix",
    "augmix_loss",
    "jensen_shannon",
]
