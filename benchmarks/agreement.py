"""The fast engines beside the eager one, over real corruptions: how often each errs, and selects as the eager one does.

    python benchmarks/agreement.py --data DIR --weights FILE [--precision tf32] [--rounds 3] [--out DIR]

Selection asks whether a difference is below zero, and what it selects decides what comes next, so that rounding grows.
How much of what engines differ by is that, shows beside: an eager adapter that lays out its images otherwise differs
in rounding alone, and adapters "led" start every batch from where the eager one is. The graph engine, which should not
differ at all, is judged.
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

# The eager one comes last: those that are led start from where it was before the batch.
CONTESTANTS = {
    "graph, led": {"engine": "graph", "channels_last": True},
    "compile, led": {"engine": "compile", "channels_last": True},
    "graph": {"engine": "graph", "channels_last": True},
    "compile": {"engine": "compile", "channels_last": True},
    "eager, other layout": {"engine": "eager", "channels_last": False},
    "eager": {"engine": "eager", "channels_last": True},
}

ERROR, MASKS = 0.05, 99.9
"""How many percentage points a round's error may be away from eager, and what share of masks has to agree."""


class Tally:
    """What one adapter did with the samples of a round."""

    def __init__(self, device: torch.device) -> None:
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)
        self._seen = 0

    def add(self, wrong: Tensor, same: Tensor) -> None:
        """Count a batch: where the answer was wrong, and where the selection was the eager adapter's."""
        self._counts += torch.stack([wrong.sum(), same.sum()])
        self._seen += len(wrong)

    def shares(self) -> dict[str, float]:
        """Both in per cent."""
        wrong, same = self._counts.tolist()
        return {"error %": 100 * wrong / self._seen, "masks agree %": 100 * same / self._seen}


@torch.no_grad()
def follow(adapter: dp.Adapter, leader: dp.Adapter) -> None:
    """Put an adapter where another one is, without moving any of its tensors: a recording goes on reading them."""
    ours, theirs = ([p for group in a.optimizer.param_groups for p in group["params"]] for a in (adapter, leader))
    torch._foreach_copy_(ours, theirs)
    for own, other in zip(ours, theirs, strict=True):
        kept, wanted = adapter.optimizer.state[own], leader.optimizer.state[other]
        for key in kept.keys() & wanted.keys():
            kept[key].copy_(wanted[key])


def compare(adapters: dict[str, dp.Adapter], images: Tensor, labels: Tensor, tallies: dict[str, Tally]) -> None:
    """Show everybody one batch."""
    leader = adapters["eager"]
    wrong = {}
    for name, adapter in adapters.items():
        if name.endswith("led") and leader.optimizer.state:
            follow(adapter, leader)
        wrong[name] = adapter(images).argmax(1) != labels
    for name, adapter in adapters.items():
        tallies[name].add(wrong[name], adapter.last.selected == leader.last.selected)


def rounds(arguments: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """Round after round of the fifteen corruptions, batch by batch through everybody."""
    device, images = torch.device(arguments.device), cifar10(arguments.data)
    clean, labels = images.batch(range(len(images))).to(device), images.labels.to(device)
    photos = find_frost_photos(arguments.frost)
    model = build_from_checkpoint(arguments.weights).to(device)
    common: dict[str, Any] = {"select": dp.ConfidenceDifference(), "precision": arguments.precision}
    adapters = {name: dp.tent(model, **common | settings) for name, settings in CONTESTANTS.items()}
    found = []
    for _ in range(arguments.rounds):
        tallies = {name: Tally(device) for name in adapters}
        for corruption in CORRUPTIONS:
            changed = corrupt(clean, corruption, 5, dataset=images.name, frost_photos=photos)
            for some, theirs in zip(
                torch.split(changed, arguments.batch), torch.split(labels, arguments.batch), strict=True
            ):
                compare(adapters, some.float() / 255, theirs, tallies)
        found.append({name: tally.shares() for name, tally in tallies.items()})
    return found


def agrees(shares: dict[str, dict[str, float]]) -> bool:
    """Whether the graph engine did in a round what the eager one did."""
    ours, theirs = shares["graph"], shares["eager"]
    return abs(ours["error %"] - theirs["error %"]) <= ERROR and ours["masks agree %"] >= MASKS


def told(found: dict[str, Any]) -> str:
    """The same as a table: for each round the error, and the share of masks that are the eager adapter's."""
    count = len(found["rounds"])
    lines = ["| |" + "".join(f" round {i + 1}: error, % | masks as eager, % |" for i in range(count))]
    lines.append("|---|" + "---:|---:|" * count)
    for name in CONTESTANTS:
        shares = (number for each in found["rounds"] for number in each[name].values())
        lines.append(f"| {name} | " + " | ".join(f"{share:.3f}" for share in shares) + " |")
    return "\n".join([*lines, *format_protocol(found["protocol"])])


def main() -> int:
    """Run, print, write down, and fail if the graph engine departs from the eager one."""
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
        print("This compares engines on a CUDA device, and there is none.")
        return 2
    everything = rounds(arguments)
    found = {
        "protocol": {
            "hardware": hardware(torch.device(arguments.device)),
            "torch": torch.__version__,
            "driftproof": dp.__version__,
            "stream": f"CIFAR-10, fifteen corruptions at severity 5, batch {arguments.batch}",
            "method": "tent+crowd",
            "precision": arguments.precision,
        },
        "rounds": everything,
    }
    print(told(found))
    if arguments.out:
        name = f"agreement-{arguments.precision}"
        write_results(arguments.out, name, found, **{name: told(found)})
    return 0 if all(map(agrees, everything)) else 1


if __name__ == "__main__":
    sys.exit(main())
