"""`sentinel` and `adapt` without batch norm: a small transformer, trained on the demo's garments, in bad weather.

The four held-out corruptions at severity 5, one after the other, for several rounds; a fifth of each batch are bags,
which the network has never seen. Error of garments and AUROC of bags in percent, per method and round, on the CPU. With
`--choose` it compares what `adapt` could do without batch norm, on streams without bags; `--shift` applies several
corruptions at once. With `--orders` it compares `adapt` with the source, clean and corrupted, mixed and sorted by
class, in batches of 64, 8 and 1.

    python benchmarks/layer_norm.py --out results/sentinel/layer-norm.json --rounds 3
    python benchmarks/layer_norm.py --out choice.json --choose --seed 1 --shift pairs --rounds 4
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import driftproof as dp
from driftproof.corruptions import HELD_OUT, corrupt
from driftproof.demo.garments import CLASSES, Garments, load_garments
from driftproof.metrics import auroc
from tables import write_json

_WIDTH, _DEPTH, _PATCH = 32, 3, 4
_KNOWN, _UNKNOWN = 80, 20
_IMAGES = 800
_ORDERED = 1200
SHIFTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "single": tuple((name,) for name in HELD_OUT),
    "pairs": (
        ("gaussian_blur", "speckle_noise"),
        ("spatter", "saturate"),
        ("speckle_noise", "saturate"),
        ("spatter", "speckle_noise"),
    ),
    "strong": (
        ("gaussian_blur", "saturate", "speckle_noise", "spatter"),
        ("gaussian_blur", "gaussian_blur", "saturate"),
    ),
}
"""Corruptions that are applied one on top of the other, for each domain of a stream."""


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


def train(garments: Garments, epochs: int, seed: int = 0) -> nn.Module:
    """Train on clean images and their mirror images."""
    torch.manual_seed(seed)
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


def make_round(garments: Garments, *, unknown: bool, shift: str = "single") -> Iterator[tuple[str, Tensor, Tensor]]:
    """Batches of one round, with labels; bags are −1."""
    for names in SHIFTS[shift]:
        known, bags = garments.test[:_IMAGES], garments.bags
        for name in names:
            known, bags = (corrupt(images, name, 5, dataset="garments") for images in (known, bags))
        for number in range(_IMAGES // _KNOWN):
            part = slice(number * _KNOWN, (number + 1) * _KNOWN)
            images, labels = known[part], garments.test_labels[part]
            if unknown:
                some = torch.arange(number * _UNKNOWN, (number + 1) * _UNKNOWN) % len(bags)
                images = torch.cat([images, bags[some]])
                labels = torch.cat([labels, torch.full((_UNKNOWN,), -1)])
            yield " + ".join(names), images.float() / 255, labels


def measure(
    adapter: dp.Adapter, garments: Garments, rounds: int, *, unknown: bool, shift: str = "single"
) -> list[dict[str, Any]]:
    """Error and AUROC of each round, mean over corruptions."""
    found = []
    batches = list(make_round(garments, unknown=unknown, shift=shift))
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


def measure_orders(network: nn.Module, garments: Garments, rounds: int) -> dict[str, dict[str, Any]]:
    """Accuracy of the source, and of `adapt` in each round; single images have one round of 400."""
    found: dict[str, dict[str, Any]] = {}
    pixels, labels = garments.test[:_ORDERED], garments.test_labels[:_ORDERED]
    for name in ("clean", "gaussian_blur", "speckle_noise"):
        images = (pixels if name == "clean" else corrupt(pixels, name, 5, dataset="garments")).float() / 255
        for order in ("mixed", "sorted"):
            places = torch.arange(_ORDERED) if order == "mixed" else labels.argsort(stable=True)
            for size, count, times in ((64, _ORDERED, rounds), (8, _ORDERED, rounds), (1, 400, 1)):
                chosen = places[torch.linspace(0, _ORDERED - 1, count).long()]
                adapter, accuracies = dp.adapt(network), []
                for _ in range(times):
                    answers = torch.cat([adapter(batch) for batch in torch.split(images[chosen], size)])
                    accuracies.append(measure_accuracy(answers, labels[chosen]))
                with torch.no_grad():
                    source = measure_accuracy(network(images[chosen]), labels[chosen])
                row = {"source": source, "adapt": accuracies, "health": adapter.last.health.state}
                found[f"{name}, {order}, batches of {size}"] = row
                print(name, order, size, row, flush=True)
    return found


def measure_accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of right predictions in percent."""
    return round(100 * float((logits.argmax(dim=1) == labels).float().mean()), 2)


def make_adapt(lr: float, pull: float, output: Literal["before", "ensemble"]) -> Callable[[nn.Module], dp.Adapter]:
    """`adapt` with other choices than its own."""
    return lambda model: dp.adapt(model, lr=lr, after=dp.after.PullToSource(pull), output=output)


METHODS: dict[str, Callable[[nn.Module], dp.Adapter]] = {
    "source": lambda model: dp.source(model, novelty="energy"),
    "tent+crowd": lambda model: dp.tent(model, select=dp.ConfidenceDifference(), novelty="energy"),
    "sentinel": dp.sentinel,
    "adapt": dp.adapt,
    "adapt, as with batch norm": make_adapt(5e-4, 1e-3, "before"),
}
CHOICES: dict[str, Callable[[nn.Module], dp.Adapter]] = {
    f"rate {lr:g}, pull {pull:g}" + (", mean of both networks" if output == "ensemble" else ""): make_adapt(
        lr, pull, output
    )
    for lr, pull in ((5e-4, 1e-3), (5e-4, 1e-2), (1e-4, 1e-2), (5e-5, 1e-3))
    for output in ("before", "ensemble")
}
"""What `adapt` could do without batch norm."""


def measure_methods(
    network: nn.Module, garments: Garments, arguments: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    """The rounds of every method on the closed and the open stream, or of every choice of `adapt` on the closed one."""
    found: dict[str, list[dict[str, Any]]] = {}
    methods = {name: METHODS[name] for name in arguments.methods}
    if arguments.choose:
        methods = {"source": METHODS["source"], **CHOICES}
    for name, make in methods.items():
        for stream in ("closed",) if arguments.choose else ("closed", "open"):
            rounds = 1 if name == "source" else arguments.rounds
            adapter = make(network)
            rows = measure(adapter, garments, rounds, unknown=stream == "open", shift=arguments.shift)
            found[f"{name}, {stream}"] = rows
            print(name, stream, rows, flush=True)
    return found


def main() -> None:
    """Train, then measure every method on the closed and the open stream."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--choose", action="store_true", help="compare the choices of `adapt`, without bags")
    parser.add_argument("--orders", action="store_true", help="compare `adapt` with the source in other streams")
    parser.add_argument("--shift", choices=SHIFTS, default="single", help="one, two or more corruptions at once")
    parser.add_argument("--seed", type=int, default=0, help="of the network's training")
    arguments = parser.parse_args()
    garments = load_garments()
    network = train(garments, arguments.epochs, arguments.seed)
    with torch.no_grad():
        wrong = network(garments.test.float() / 255).argmax(dim=1) != garments.test_labels
    found: dict[str, Any] = {
        "network": f"transformer of {_DEPTH} blocks, layer norm, {arguments.epochs} epochs, seed {arguments.seed}",
        "clean error": round(100 * float(wrong.float().mean()), 2),
        "torch": torch.__version__,
        "driftproof": dp.__version__,
    }
    if arguments.orders:
        found["rows"] = measure_orders(network, garments, arguments.rounds)
    else:
        found["corruptions"] = [" + ".join(names) for names in SHIFTS[arguments.shift]]
        found["batch"] = f"{_KNOWN} garments, in open streams {_UNKNOWN} bags"
        found["rows"] = measure_methods(network, garments, arguments)
    write_json(arguments.out, found)


if __name__ == "__main__":
    main()
