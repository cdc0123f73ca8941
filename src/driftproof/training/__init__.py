"""Training of source models with the recipes of the paper."""

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
from driftproof.training.scenes import SceneTrainer, evaluate_mean_iou, load_labeled_scenes, scaled_crop_and_flip
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
    "evaluate_mean_iou",
    "jensen_shannon",
    "load_labeled_scenes",
    "scaled_crop_and_flip",
]
