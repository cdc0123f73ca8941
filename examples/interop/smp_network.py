"""Adapt a segmentation network of segmentation_models_pytorch: one prediction per pixel.

python examples/interop/smp_network.py
"""

import importlib

import torch

from common import CLASSES, adapt_and_report, fit, import_torchvision, make_scenes


def main() -> None:
    """Build a U-Net with random weights, train it for some seconds, adapt it."""
    import_torchvision()
    smp = importlib.import_module("segmentation_models_pytorch")
    torch.manual_seed(0)
    model = smp.Unet(
        "timm-mobilenetv3_small_minimal_100", encoder_weights=None, encoder_depth=3, decoder_channels=(32, 16, 8),
        classes=CLASSES,
    )  # fmt: skip
    fit(model, model, make_scenes(96, 64, seed=0), steps=80)
    adapt_and_report(model, model, make_scenes(32, 64, seed=1), size=8)


if __name__ == "__main__":
    main()
