"""Compare the engines with the eager one on CIFAR-10 corruptions: errors and selected samples.

    python benchmarks/agreement.py --data DIR --weights FILE [--precision tf32] [--rounds 3] [--out DIR]

Selection compares a difference with zero, and the next step depends on what it selects, so rounding errors grow. Two
controls show how much of a difference is rounding: an eager adapter with another memory layout differs by rounding
only, and adapters marked "led" start every batch from the eager adapter's state. The graph engine must agree with the
eager one; the script exits with 1 otherwise.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import driftproof as dp
from driftproof.bench.environment import hardware
from driftproof.corruptions import CORRUPTIONS, corrupt, find_frost_photos
from driftproof.data import cifar10
from driftproof.models import build_from_checkpoint
from tables import format_protocol, write_results

# "eager" comes last: the "led" adapters start from its state before the batch.
CONTESTANTS = {
    "graph, led": {"engine": "graph", "channels_last": True},
    "compile, led": {"engine": "compile", "channels_last": True},
    "graph": {"engine": "graph", "channels_last": True},
    "compile": {"engine": "compile", "channels_last": True},
    "eager, other layout": {"engine": "eager", "channels_last": False},
    "eager": {"engine": "eager", "channels_last": True},
}

ERROR, MASKS = 0.05, 99.9
"""Limits per round: points the error may differ from eager's, and percent of the masks that must agree."""


class RoundCounts:
    """Counts of one adapter in one round."""

    def __init__(self, device: torch.device) -> None:
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)
        self._seen = 0

    def update(self, wrong: Tensor, same: Tensor) -> None:
        """Count a batch: wrong predictions, and samples that the eager adapter selects or rejects alike."""
        self._counts += torch.stack([wrong.sum(), same.sum()])
        self._seen += len(wrong)

    def compute(self) -> dict[str, float]:
        """Return both counts in percent."""
        wrong, same = self._counts.tolist()
        return {"error %": 100 * wrong / self._seen, "masks agree %": 100 * same / self._seen}


@torch.no_grad()
def copy_state(adapter: dp.Adapter, leader: dp.Adapter) -> None:
    """Copy the leader's parameters and optimizer state in place: a CUDA graph keeps reading the same tensors."""
    ours, theirs = ([p for group in a.optimizer.param_groups for p in group["params"]] for a in (adapter, leader))
    torch._foreach_copy_(ours, theirs)
    for own, other in zip(ours, theirs, strict=True):
        target, source = adapter.optimizer.state[own], leader.optimizer.state[other]
        for key in target.keys() & source.keys():
            target[key].copy_(source[key])


def compare(adapters: dict[str, dp.Adapter], images: Tensor, labels: Tensor, counts: dict[str, RoundCounts]) -> None:
    """Run all adapters on one batch and count."""
    leader = adapters["eager"]
    wrong = {}
    for name, adapter in adapters.items():
        if name.endswith("led") and leader.optimizer.state:
            copy_state(adapter, leader)
        wrong[name] = adapter(images).argmax(1) != labels
    for name, adapter in adapters.items():
        counts[name].update(wrong[name], adapter.last.selected == leader.last.selected)


def measure_rounds(arguments: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """Run all adapters over the rounds of the fifteen corruptions, batch by batch."""
    device, images = torch.device(arguments.device), cifar10(arguments.data)
    clean, labels = images.batch(range(len(images))).to(device), images.labels.to(device)
    photos = find_frost_photos(arguments.frost)
    model = build_from_checkpoint(arguments.weights).to(device)
    common: dict[str, Any] = {"select": dp.ConfidenceDifference(), "precision": arguments.precision}
    adapters = {name: dp.tent(model, **common | settings) for name, settings in CONTESTANTS.items()}
    rounds = []
    for _ in range(arguments.rounds):
        counts = {name: RoundCounts(device) for name in adapters}
        for corruption in CORRUPTIONS:
            changed = corrupt(clean, corruption, 5, dataset=images.name, frost_photos=photos)
            for some, theirs in zip(
                torch.split(changed, arguments.batch), torch.split(labels, arguments.batch), strict=True
            ):
                compare(adapters, some.float() / 255, theirs, counts)
        rounds.append({name: count.compute() for name, count in counts.items()})
    return rounds


def graph_agrees(percentages: dict[str, dict[str, float]]) -> bool:
    """Whether the graph engine agrees with the eager one in a round."""
    ours, theirs = percentages["graph"], percentages["eager"]
    return abs(ours["error %"] - theirs["error %"]) <= ERROR and ours["masks agree %"] >= MASKS


def format_table(results: dict[str, Any]) -> str:
    """Return the error and the agreement of the masks of each round as Markdown."""
    count = len(results["rounds"])
    lines = ["| |" + "".join(f" round {i + 1}: error, % | masks as eager, % |" for i in range(count))]
    lines.append("|---|" + "---:|---:|" * count)
    for name in CONTESTANTS:
        numbers = (number for each in results["rounds"] for number in each[name].values())
        lines.append(f"| {name} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |")
    return "\n".join([*lines, *format_protocol(results["protocol"])])


def main() -> int:
    """Measure, print, write, and return 1 if the graph engine disagrees with the eager one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10 in its official format")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--frost", type=Path, help="folder of frost photos; otherwise the installed package's")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="tf32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="folder for agreement-PRECISION.json and .md")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("Expected a CUDA device, but there is none.")
        return 2
    rounds = measure_rounds(arguments)
    results = {
        "protocol": {
            "hardware": hardware(torch.device(arguments.device)),
            "torch": torch.__version__,
            "driftproof": dp.__version__,
            "stream": f"CIFAR-10, fifteen corruptions at severity 5, batch {arguments.batch}",
            "method": "tent+crowd",
            "precision": arguments.precision,
        },
        "rounds": rounds,
    }
    print(format_table(results))
    if arguments.out:
        name = f"agreement-{arguments.precision}"
        write_results(arguments.out, name, results, **{name: format_table(results)})
    return 0 if all(map(graph_agrees, rounds)) else 1


if __name__ == "__main__":
    sys.exit(main())
