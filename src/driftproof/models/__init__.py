"""Networks of the paper, with the parameter names of the public checkpoints, and how to load and save their weights."""

from driftproof.models.backbone import Transfer, load_backbone
from driftproof.models.catalogue import MODELS, Entry, build
from driftproof.models.checkpoints import Checkpoint, load_checkpoint, read_checkpoint, restore, save_checkpoint
from driftproof.models.deeplab import DeepLabV3Plus
from driftproof.models.resnet import ResNet50
from driftproof.models.resnext import ResNeXt29
from driftproof.models.wide_resnet import WideResNet

__all__ = [
    "MODELS",
    "Checkpoint",
    "DeepLabV3Plus",
    "Entry",
    "ResNeXt29",
    "ResNet50",
    "Transfer",
    "WideResNet",
    "build",
    "load_backbone",
    "load_checkpoint",
    "read_checkpoint",
    "restore",
    "save_checkpoint",
]
