"""Adapt a LightningModule after its Trainer has fitted it.

python examples/interop/lightning_module.py
"""

import importlib
import logging
import warnings
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from common import CLASSES, adapt_and_report, import_torchvision, make_images


def make_classifier(lightning: Any) -> nn.Module:  # noqa: ANN401  # the package is optional
    """Return a LightningModule of three convolutions."""

    class Classifier(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            widths = (3, 16, 32, 32)
            blocks = [
                nn.Sequential(nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
                for before, after in pairwise(widths)
            ]
            self.network = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.network(images)
            return logits

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return F.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    return Classifier()


def main() -> None:
    """Fit a module with the Trainer for some seconds, adapt it."""
    import_torchvision()
    lightning = importlib.import_module("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    lightning.seed_everything(0, verbose=False)
    model = make_classifier(lightning)
    trainer = lightning.Trainer(
        max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(*make_images(512, 48, seed=0)), batch_size=32, shuffle=True))
    adapt_and_report(model.eval(), model, make_images(256, 48, seed=1))


if __name__ == "__main__":
    main()
