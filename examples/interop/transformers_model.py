"""Adapt an image classifier of Hugging Face: its output has `.logits`, its image processor becomes a preset.

python examples/interop/transformers_model.py
"""

import importlib
import json
import tempfile
from pathlib import Path

import torch

from common import CLASSES, adapt_and_report, fit, import_torchvision, make_images
from driftproof.cli.presets import load_preset


def main() -> None:
    """Build a small ResNet from its configuration, train it for some seconds, adapt it."""
    import_torchvision()
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=CLASSES
    )
    model = transformers.ResNetForImageClassification(config)
    fit(model, lambda images: model(images).logits, make_images(512, 48, seed=0))
    adapt_and_report(model, lambda images: model(images).logits, make_images(256, 48, seed=1), key="logits")

    # `driftproof adapt --preset preprocessor_config.json` prepares images as the processor does.
    processor = transformers.ViTImageProcessor(size={"height": 48, "width": 48})
    with tempfile.TemporaryDirectory() as folder:
        processor.save_pretrained(folder)
        path = next(Path(folder).glob("*processor_config.json"))
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(content.get("image_processor", content)), encoding="utf-8")
        preset = load_preset(str(path))
    print(f"preset         {preset}")


if __name__ == "__main__":
    main()
