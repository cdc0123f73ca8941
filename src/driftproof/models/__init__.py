"""Networks of the paper, with the parameter names of the public checkpoints."""

from driftproof.models.wide_resnet import WideResNet

__all__ = ["WideResNet"]
