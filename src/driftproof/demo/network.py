"""The demo's network: five convolutions with batch norm, trained in seconds."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftproof.demo.garments import CLASSES

__all__ = ["build_network", "train_network"]

_EPOCHS, _BATCH, _LR = 5, 100, 0.2


def build_network() -> nn.Sequential:
    """Build the network with random weights."""
    widths = ((3, 16, 2), (16, 32, 1), (32, 32, 2), (32, 64, 1), (64, 64, 2))
    blocks = [
        nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        for before, after, stride in widths
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(CLASSES)))


def train_network(
    images: Tensor, labels: Tensor, *, seed: int = 0, progress: Callable[[float, str], None] = lambda share, note: None
) -> nn.Module:
    """Train on clean images, and return the network in evaluation mode.

    Args:
        images: 8-bit images, (N, 3, 32, 32).
        labels: Their classes.
        seed: Of the initial weights and the order of the images.
        progress: Called with the share that is done and the loss.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_network()
        optimizer = torch.optim.SGD(network.parameters(), lr=_LR, momentum=0.9, weight_decay=5e-4, nesterov=True)
        steps = _EPOCHS * -(-len(images) // _BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LR, steps)
        order = torch.cat([torch.randperm(len(images)) for _ in range(_EPOCHS)])
        for step, chosen in enumerate(torch.split(order, _BATCH)):
            batch = images[chosen].float() / 255
            optimizer.zero_grad()
            loss = F.cross_entropy(network(batch if step % 2 else batch.flip(3)), labels[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            progress((step + 1) / steps, f"train a network: loss {float(loss.detach()):.2f}")
    return network.eval()
