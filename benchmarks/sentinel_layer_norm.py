"""The sentinel on a network without batch norm: a small transformer, trained on the demo's garments, in bad weather.

The four held-out corruptions at severity 5, one after the other, for several rounds; a fifth of each batch are bags,
which the network has never seen. Error of garments and AUROC of bags in percent, per method and round, on the CPU.

    python benchmarks/sentinel_layer_norm.py --out results/sentinel/layer-norm.json
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import driftproof as dp
from driftproof.corruptions import HELD_OUT, corrupt
from driftproof.demo.garments import CLASSES, Garments, load_garments
from driftproof.metrics import auroc

_WIDTH, _DEPTH, _PATCH = 32, 3, 4
_KNOWN, _UNKNOWN = 80, 20
_IMAGES = 800


class SmallTransformer(nn.Module):
    """Patches of 4 × 4 pixels, three blocks with layer norm, and the mean over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, _WIDTH, _PATCH, _PATCH)
        self.places = nn.Parameter(torch.zeros(1, (32 // _PATCH) ** 2, _WIDTH))
        layer = nn.TransformerEncoderLayer(_WIDTH, 4, 2 * _WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, _DEPTH, nn.LayerNorm(_WIDTH), enable_nested_tensor=False)
        self.classifier = nn.Linear(_WIDTH, len(CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        found: Tensor = self.classifier(self.blocks(tokens).mean(dim=1))
        return found


def train(garments: Garments, epochs: int) -> nn.Module:
    """Train on clean images and their mirror images."""
    torch.manual_seed(0)
    network = SmallTransformer()
    steps = epochs * (len(garments.train) // 100)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    order = torch.cat([torch.randperm(len(garments.train)) for _ in range(epochs)])
    for step, chosen in enumerate(torch.split(order, 100)[:steps]):
        images = garments.train[chosen].float() / 255
        optimizer.zero_grad()
        loss = F.cross_entropy(network(images.flip(3) if step % 2 else images), garments.train_labels[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return network.eval()


def make_round(garments: Garments, *, unknown: bool) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Batches of one round, with labels; bags are −1."""
    for name in HELD_OUT:
        chosen = garments.test[:_IMAGES], garments.bags
        known, bags = (corrupt(images, name, 5, dataset="garments") for images in chosen)
        for number in range(_IMAGES // _KNOWN):
            part = slice(number * _KNOWN, (number + 1) * _KNOWN)
            images, labels = known[part], garments.test_labels[part]
            if unknown:
                some = torch.arange(number * _UNKNOWN, (number + 1) * _UNKNOWN) % len(bags)
                images = torch.cat([images, bags[some]])
                labels = torch.cat([labels, torch.full((_UNKNOWN,), -1)])
            yield name, images.float() / 255, labels


def measure(adapter: dp.Adapter, garments: Garments, rounds: int, *, unknown: bool) -> list[dict[str, Any]]:
    """Error and AUROC of each round, mean over corruptions."""
    found = []
    batches = list(make_round(garments, unknown=unknown))
    for number in range(1, rounds + 1):
        errors: dict[str, list[float]] = {}
        scores: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for name, images, labels in batches:
            predicted, known = adapter(images).argmax(dim=1), labels >= 0
            errors.setdefault(name, []).append(100 * float((predicted != labels)[known].float().mean()))
            novelty = adapter.last.novelty
            scores.setdefault(name, []).append((-novelty[known], -novelty[~known]))
        row: dict[str, Any] = {"round": number, "error": round(fmean(map(fmean, errors.values())), 2)}
        row["health"] = adapter.last.health.state
        if unknown:
            areas = (auroc(*(torch.cat(side) for side in zip(*pairs, strict=True))) for pairs in scores.values())
            row["auroc"] = round(100 * fmean(areas), 2)
        found.append(row)
    return found


def main() -> None:
    """Train, then measure every method on the closed and the open stream."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--methods", nargs="+", help="Some of them, by name.")
    arguments = parser.parse_args()
    garments = load_garments()
    network = train(garments, arguments.epochs)
    with torch.no_grad():
        wrong = network(garments.test.float() / 255).argmax(dim=1) != garments.test_labels
    found: dict[str, Any] = {
        "network": f"transformer of {_DEPTH} blocks, layer norm, {arguments.epochs} epochs, seed 0",
        "corruptions": list(HELD_OUT),
        "batch": f"{_KNOWN} garments, in open streams {_UNKNOWN} bags",
        "clean error": round(100 * float(wrong.float().mean()), 2),
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "rows": {},
    }
    methods: dict[str, Callable[[nn.Module], dp.Adapter]] = {
        "source": lambda model: dp.source(model, novelty="energy"),
        "tent+crowd": lambda model: dp.tent(model, select=dp.ConfidenceDifference(), novelty="energy"),
        "sentinel": dp.sentinel,
        "adapt": dp.adapt,
        "adapt, lr 5e-5": lambda model: dp.adapt(model, lr=5e-5),
    }
    for name in arguments.methods or methods:
        make = methods[name]
        for stream, unknown in (("closed", False), ("open", True)):
            rounds = 1 if name == "source" else arguments.rounds
            found["rows"][f"{name}, {stream}"] = measure(make(network), garments, rounds, unknown=unknown)
            print(name, stream, found["rows"][f"{name}, {stream}"], flush=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
