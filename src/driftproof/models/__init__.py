"""Networks of the paper, named as in the public checkpoints, and safe loading and saving of weights."""

from driftproof.models.backbone import LoadReport, load_backbone
from driftproof.models.checkpoints import (
    Checkpoint,
    build_from_checkpoint,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from driftproof.models.deeplab import DeepLabV3Plus
from driftproof.models.exported import load_exported
from driftproof.models.normalized_model import NormalizedInput
from driftproof.models.registry import MODELS, ModelInfo, build_model
from driftproof.models.resnet import ResNet50
from driftproof.models.resnext import ResNeXt29
from driftproof.models.wide_resnet import WideResNet

__all__ = [
    "MODELS",
    "Checkpoint",
    "DeepLabV3Plus",
    "LoadReport",
    "ModelInfo",
    "NormalizedInput",
    "ResNeXt29",
    "ResNet50",
    "WideResNet",
    "build_from_checkpoint",
    "build_model",
    "load_backbone",
    "load_checkpoint",
    "load_exported",
    "read_checkpoint",
    "save_checkpoint",
]
