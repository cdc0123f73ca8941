"""Adapt a model of torchvision, and export what it became as a `torch.export` program.

python examples/interop/torchvision_model.py
"""

import tempfile
from pathlib import Path

import torch

from common import CLASSES, adapt_and_report, fit, import_torchvision, make_images


def main() -> None:
    """Build `shufflenet_v2_x0_5` with random weights, train it for some seconds, adapt it, export it."""
    models = import_torchvision().models
    torch.manual_seed(0)
    model = models.shufflenet_v2_x0_5(weights=None, num_classes=CLASSES)
    fit(model, model, make_images(512, 48, seed=0))
    images, labels = make_images(256, 48, seed=1)
    adapter = adapt_and_report(model, model, (images, labels))
    plain = adapter.unwrap(statistics="stream")
    with tempfile.TemporaryDirectory() as folder:
        path, batch = Path(folder, "adapted.pt2"), {0: torch.export.Dim("batch")}
        torch.export.save(torch.export.export(plain, (images[:4],), dynamic_shapes=(batch,)), path)
        program = torch.export.load(path).module()
        with torch.no_grad():
            difference = float((program(images[:7]) - plain(images[:7])).abs().max())
        print(f"torch.export   differs by at most {difference:.0e} from the module")


if __name__ == "__main__":
    main()
