"""The demo's network: small, and trained on scikit-learn's digits in seconds."""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from driftproof.components import Progress
from driftproof.data import digits
from driftproof.files import atomic_write

__all__ = ["FIVE_LAYERS", "build_five_layers", "train_digits"]

FIVE_LAYERS = "five_layers"
"""Name of the network."""

_EPOCHS = 15


def build_five_layers() -> nn.Module:
    """Build the network with random weights: five convolutions, six classes."""
    widths = ((3, 8, 2), (8, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1))
    blocks = [
        nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        for before, after, stride in widths
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 6))


def train_digits(path: Path, *, seed: int = 0, progress: Progress | None = None) -> Path:
    """Train the network on the clean digits 0 to 5 and save it; keep it if it is there.

    Args:
        path: Output file, such as `five_layers_digits.safetensors`.
        seed: Seed of the initial weights and of the order of the images.
        progress: Called with the stage and the number of images done.
    """
    if path.exists():
        return path
    images = digits(train=True)
    pixels = images.batch(range(len(images))).float() / 255
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_five_layers()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _EPOCHS)
        for epoch in range(_EPOCHS):
            for chosen in torch.split(torch.randperm(len(images)), 50):
                optimizer.zero_grad()
                F.cross_entropy(network(pixels[chosen]), images.labels[chosen]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            schedule.step()
            if progress is not None:
                progress("training", (epoch + 1) * len(images))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished:
        save_file(network.state_dict(), unfinished)
    return path
