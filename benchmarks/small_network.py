"""A small network trained on the 5,000 training images at hand, once."""

from pathlib import Path

import torch
from torch import nn

from driftproof.bench.environment import hardware
from driftproof.data import cifar10
from driftproof.models import build_from_checkpoint, build_model, save_checkpoint
from driftproof.training import Recipe, Trainer

__all__ = ["NAME", "load_small_network"]

NAME = "wrn16_1"
"""Sixteen layers of 16 to 64 channels, about a ResNet-14."""


def load_small_network(path: Path, data: Path, *, device: str, epochs: int, seed: int = 0) -> nn.Module:
    """Return the network from its file; train it and write the file where there is none.

    The same seed gives the same network on the same machine.

    Args:
        path: File of the weights.
        data: Folder of CIFAR-10.
        device: Where it is trained and returned.
        epochs: Passes over the training images.
        seed: Of its first weights and of the order of the images.
    """
    if not path.exists():
        images = cifar10(data, train=True)
        recipe = Recipe(epochs=epochs, batch_size=128, lr=0.1, nesterov=True, weight_decay=5e-4)
        pixels = images.batch(range(len(images)))
        with torch.random.fork_rng(devices=[]), torch.backends.cudnn.flags(enabled=True, deterministic=True):
            torch.manual_seed(seed)
            network = build_model(NAME, classes=10)
            trainer = Trainer(network, pixels, images.labels, recipe, seed=seed, device=device)
            trainer.run(progress=lambda epoch: print(f"epoch {epoch.epoch}: {100 * epoch.accuracy:.1f} %", flush=True))
        trained_on = hardware(torch.device(device))
        save_checkpoint(path, trainer.model, {"arch": NAME, "epochs": epochs, "seed": seed, "trained_on": trained_on})
    return build_from_checkpoint(path).to(device).eval()
