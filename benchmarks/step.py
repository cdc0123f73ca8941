"""What one adaptation step costs: a TENT loop written by hand, `tent`, and `tent` with the paper's selection.

    python benchmarks/step.py [--depth 16] [--width 1] [--batch 64] [--rounds 30] [--device cpu] [--compile] [--out D]

With `--compile`, both also run with `engine="compile"`. All take turns, batch by batch, in one process, so that
whatever else the machine does hits all alike; medians are compared. The targets: `tent` at most 1.05 times the loop,
selection at most 1.45 times `tent`; compiled, `tent` at most as much as not, and selection at most 1.35 times `tent` as
it is.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import driftproof as dp
from driftproof.models import WideResNet
from tables import conditions, ratio_table, write

LIMITS = {
    "tent / by hand": 1.05,
    "tent+crowd / tent": 1.45,
    "tent, compiled / tent": 1.0,
    "tent+crowd, compiled / tent+crowd": 1.0,
    "tent+crowd, compiled / tent": 1.35,
}

WARM_UP = 5  # compiling starts with the third batch


def tent_by_hand(model: nn.Module, lr: float = 1e-3) -> Callable[[Tensor], Tensor]:
    """TENT as one would write it into a script: batch statistics, affine parameters, entropy, one step."""
    model.requires_grad_(False)
    affine: list[nn.Parameter] = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(True)
            module.track_running_stats = False
            module.running_mean = module.running_var = None
            affine += [module.weight, module.bias]
    optimizer = torch.optim.Adam(affine, lr=lr)

    def step(images: Tensor) -> Tensor:
        logits: Tensor = model(images)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return logits.detach()

    return step


def seconds(step: Callable[[Tensor], Tensor], images: Tensor) -> float:
    """How long one step takes, the device's work included."""
    start = time.perf_counter()
    step(images)
    if images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Median seconds of a step for each contestant."""
    torch.manual_seed(0)

    def network() -> nn.Module:
        return WideResNet(arguments.depth, arguments.width).to(arguments.device)

    contestants: dict[str, Callable[[Tensor], Tensor]] = {
        "by hand": tent_by_hand(network()),
        "tent": dp.tent(network()),
        "tent+crowd": dp.tent(network(), select=dp.ConfidenceDifference()),
    }
    if arguments.compile:
        contestants["tent, compiled"] = dp.tent(network(), engine="compile")
        contestants["tent+crowd, compiled"] = dp.tent(network(), select=dp.ConfidenceDifference(), engine="compile")
    images = torch.rand(arguments.batch, 3, 32, 32, device=arguments.device)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for index in range(arguments.rounds + WARM_UP):
        for name, step in contestants.items():
            taken = seconds(step, images)
            if index >= WARM_UP:
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}


def told(found: dict[str, Any]) -> str:
    """The same in tables."""
    lines = ["| | ms |", "|---|---:|"]
    lines += [f"| {name} | {1e3 * median:.2f} |" for name, median in found["median_seconds"].items()]
    return "\n".join([*lines, "", *ratio_table(found["ratios"], LIMITS), *conditions(found["protocol"])])


def main() -> int:
    """Measure, print, and fail if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path, help="folder for step.json and the tables in step.md")
    arguments = parser.parse_args()
    medians = measure(arguments)
    pairs = {name: name.split(" / ") for name in LIMITS}
    ratios = {name: medians[one] / medians[other] for name, (one, other) in pairs.items() if one in medians}
    protocol = {
        "network": f"WRN-{arguments.depth}-{arguments.width}",
        "batch": arguments.batch,
        "rounds": arguments.rounds,
        "device": arguments.device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": platform.machine(),
    }
    found = {"protocol": protocol, "median_seconds": medians, "ratios": ratios}
    print(told(found))
    if arguments.out:
        write(arguments.out, "step", found, step=told(found))
    return 0 if all(ratio <= LIMITS[name] for name, ratio in ratios.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
