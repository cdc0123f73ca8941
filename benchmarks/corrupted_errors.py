"""Measure the errors of a source model and of `bn_adapt` on every generated corruption.

    python benchmarks/corrupted_errors.py --data DIR --set cifar10 --weights FILE [--device cuda] [--out FILE]

DIR holds the official files of the set. The whole test set is corrupted, in stored order and in batches of 200; the
seconds this takes are reported too. `--held-out` takes the four held-out corruptions instead of the fifteen.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import driftproof as dp
from driftproof.bench.environment import hardware
from driftproof.corruptions import CORRUPTIONS, HELD_OUT, corrupt, find_frost_photos
from driftproof.data import ImageSet, cifar10, cifar100
from driftproof.models import build_from_checkpoint
from tables import write_json

SETS: dict[str, Callable[[Path], ImageSet]] = {"cifar10": cifar10, "cifar100": cifar100}
BATCH = 200


def compute_error(adapter: dp.Adapter, images: Tensor, labels: Tensor) -> float:
    """Return the percentage of wrong predictions."""
    wrong = torch.zeros((), device=labels.device)
    for some, their_labels in zip(torch.split(images, BATCH), torch.split(labels, BATCH), strict=True):
        wrong += (adapter(some.float() / 255).argmax(1) != their_labels).sum()
    return 100 * float(wrong) / len(labels)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the errors of every corruption, and the protocol."""
    images = SETS[arguments.set](arguments.data)
    model = build_from_checkpoint(arguments.weights).to(arguments.device)
    clean = images.batch(range(len(images))).to(arguments.device)
    labels = images.labels.to(arguments.device)
    photos = find_frost_photos(arguments.frost)
    methods = {"source": dp.source(model), "bn_adapt": dp.bn_adapt(model)}
    errors = {name: {"clean": compute_error(adapter, clean, labels)} for name, adapter in methods.items()}
    seconds = {}
    for corruption in HELD_OUT if arguments.held_out else CORRUPTIONS:
        start = time.perf_counter()
        changed = corrupt(clean, corruption, arguments.severity, dataset=images.name, frost_photos=photos)
        if changed.is_cuda:
            torch.cuda.synchronize()
        seconds[corruption] = time.perf_counter() - start
        for name, adapter in methods.items():
            errors[name][corruption] = compute_error(adapter, changed, labels)
        print(f"{corruption:<18}", "  ".join(f"{name} {errors[name][corruption]:6.2f}" for name in methods), flush=True)
    return {
        "set": images.name,
        "images": len(images),
        "severity": arguments.severity,
        "batch_size": BATCH,
        "weights": arguments.weights.name,
        "frost": photos.origin,
        "errors": errors,
        "corruption_seconds": seconds,
        "driftproof": dp.__version__,
        "torch": torch.__version__,
        "hardware": hardware(clean.device),
    }


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", choices=sorted(SETS), default="cifar10")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--frost", type=Path, help="folder of frost photos; otherwise the installed package's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = measure(arguments)
    for name, values in rows["errors"].items():
        corrupted = [value for corruption, value in values.items() if corruption != "clean"]
        print(f"{name:<10} clean {values['clean']:.2f}   mean over corruptions {sum(corrupted) / len(corrupted):.2f}")
    seconds = rows["corruption_seconds"].values()
    print(f"{sum(seconds):.1f} s to corrupt {len(seconds)} × {rows['images']} images")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.out, rows)


if __name__ == "__main__":
    main()
