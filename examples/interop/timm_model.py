"""Adapt a model of timm: its logits are the output.

python examples/interop/timm_model.py
"""

import importlib

import torch

from common import CLASSES, adapt_and_report, fit, import_torchvision, make_images


def main() -> None:
    """Build `test_resnet` with random weights, train it for some seconds, adapt it."""
    import_torchvision()
    timm = importlib.import_module("timm")
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", pretrained=False, num_classes=CLASSES)
    data = make_images(512, 48, seed=0)
    fit(model, model, data)
    adapt_and_report(model, model, make_images(256, 48, seed=1))


if __name__ == "__main__":
    main()
