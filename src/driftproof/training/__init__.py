"""Training of source models, as the paper's were trained."""

from driftproof.training.augmix import augmix
from driftproof.training.loss import augmix_loss, jensen_shannon
from driftproof.training.recipes import (
    CIFAR_RESNET50,
    DEEPLAB,
    RESNEXT_AUGMIX,
    TINY_RESNET50,
    WRN_AUGMIX,
    Recipe,
    SceneRecipe,
)
from driftproof.training.scenes import SceneTrainer, labelled_scenes, mean_iou, scaled_crops
from driftproof.training.trainer import EpochRecord, Trainer

__all__ = [
    "CIFAR_RESNET50",
    "DEEPLAB",
    "RESNEXT_AUGMIX",
    "TINY_RESNET50",
    "WRN_AUGMIX",
    "EpochRecord",
    "Recipe",
    "SceneRecipe",
    "SceneTrainer",
    "Trainer",
    "augmix",
    "augmix_loss",
    "jensen_shannon",
    "labelled_scenes",
    "mean_iou",
    "scaled_crops",
]
