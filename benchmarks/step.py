"""Time one adaptation step: hand-written loops, `tent`, and `tent` with selection.

    python benchmarks/step.py [--depth 16] [--width 1] [--batch 64] [--rounds 30] [--compile] [--busy] [--out DIR]

With `--compile`, `tent` also runs with `engine="compile"`, without and with selection. All contestants take turns,
batch by batch, in one process. The medians are compared; `LIMITS` has the largest ratios allowed. On a machine that
does other work, `--busy` compares processor time instead.

Selection needs a second forward pass. Where two hand-written passes already take longer than its limit allows, because
a backward pass to the affine parameters is cheap there, it may take 5 % more than their ratio: see `SECOND_PASS`.

glibc returns freed memory to the system after some steps and not after others, depending on what else the process
holds, and whoever comes next pays for the page faults: up to a quarter of a step, the same contestant many or none from
one run to the next. So it is told to keep freed memory, for all contestants alike.
"""

import argparse
import ctypes
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import driftproof as dp
from by_hand import tent_by_hand, tent_crowd_by_hand
from driftproof.analyses import synchronizer, time_steps
from driftproof.models import WideResNet
from health_cost import LIMIT, measure_health_cost
from tables import format_protocol, format_ratios, write_results

LIMITS = {
    "tent / by hand": 1.05,
    "tent+crowd / tent+crowd by hand": 1.05,
    "tent+crowd / tent": 1.40,
    "tent, compiled / tent": 1.0,
    "tent+crowd, compiled / tent+crowd": 1.0,
    "tent+crowd, compiled / tent": 1.35,
}
SECOND_PASS = ("tent+crowd / tent", "tent+crowd by hand", "by hand")
"""A ratio whose limit is at least 5 % above that of these two, as every limit on what we add to a loop."""
HEALTH = {"tent with health / without": False, "tent+crowd with health / without": True}
"""What health costs: whether steps select."""

WARM_UP = 5  # compiling starts with the third batch


def keep_freed_memory() -> bool:
    """Have the allocator keep what is freed for the next step; returns whether it can."""
    if platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_max = -1, -4  # of malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(trim_threshold, 2**31 - 1) and mallopt(mmap_max, 0))


def measure(arguments: argparse.Namespace) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median seconds of a step for each contestant, and the ratios of what health costs."""
    torch.manual_seed(0)
    device = torch.device(arguments.device)

    def make_network() -> nn.Module:
        return WideResNet(arguments.depth, arguments.width).to(device)

    contestants: dict[str, Callable[[Tensor], Tensor]] = {
        "by hand": tent_by_hand(make_network()),
        "tent": dp.tent(make_network(), engine="eager"),
        "tent+crowd by hand": tent_crowd_by_hand(make_network()),
        "tent+crowd": dp.tent(make_network(), select=dp.ConfidenceDifference(), engine="eager"),
    }
    if arguments.compile:
        compiled = partial(dp.tent, engine="compile")
        contestants["tent, compiled"] = compiled(make_network())
        contestants["tent+crowd, compiled"] = compiled(make_network(), select=dp.ConfidenceDifference())
    images = torch.rand(arguments.batch, 3, 32, 32, device=device)
    steps = {name: partial(step, images) for name, step in contestants.items()}
    wait, clock = synchronizer(device), time.process_time if arguments.busy else time.perf_counter
    timings = time_steps(steps, trials=arguments.rounds, warm_up=WARM_UP, synchronize=wait, clock=clock)
    costs = {
        name: measure_health_cost(make_network, images, select=select, clock=clock, engine="eager")
        for name, select in HEALTH.items()
    }
    return {name: timing.median for name, timing in timings.items()}, costs


def format_tables(results: dict[str, Any]) -> str:
    """Return the times and the ratios as Markdown."""
    lines = ["| | ms |", "|---|---:|"]
    lines += [f"| {name} | {1e3 * median:.2f} |" for name, median in results["median_seconds"].items()]
    return "\n".join(
        [
            *lines,
            "",
            *format_ratios(results["ratios"], results["limits"]),
            *format_protocol(results["protocol"]),
        ]
    )


def main() -> int:
    """Measure, print, write, and return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="also measure the engine 'compile'")
    parser.add_argument("--busy", action="store_true", help="compare processor time, on a busy machine")
    parser.add_argument("--out", type=Path, help="folder for step.json and the tables in step.md")
    arguments = parser.parse_args()
    keeps_freed_memory = keep_freed_memory()
    medians, costs = measure(arguments)
    pairs = {name: name.split(" / ") for name in LIMITS}
    ratios = {name: medians[one] / medians[other] for name, (one, other) in pairs.items() if one in medians} | costs
    limited, one, other = SECOND_PASS
    ratios[f"{one} / {other}"] = by_hand = medians[one] / medians[other]
    limits = LIMITS | dict.fromkeys(HEALTH, LIMIT) | {limited: max(LIMITS[limited], 1.05 * by_hand)}
    protocol = {
        "network": f"WRN-{arguments.depth}-{arguments.width}",
        "batch": arguments.batch,
        "rounds": arguments.rounds,
        "device": arguments.device,
        "threads": torch.get_num_threads(),
        "time": "of the processor" if arguments.busy else "of a clock",
        "freed memory": "kept" if keeps_freed_memory else "as the system does",
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": platform.machine(),
    }
    results = {"protocol": protocol, "median_seconds": medians, "ratios": ratios, "limits": limits}
    print(format_tables(results))
    if arguments.out:
        write_results(arguments.out, "step", results, step=format_tables(results))
    return 0 if all(ratio <= limits.get(name, ratio) for name, ratio in ratios.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
