"""The step on driving scenes: TENT with and without selection, time and memory, on frames as large as the paper's.

    python benchmarks/scenes.py [--height 800 --width 1455] [--engine graph] [--precision tf32] [--out DIR]

All take turns in one process, with statistics that go along with the stream, as in the paper; medians are compared. Of
the ways to select, the fastest is judged. The limit on memory is 1.15 times what TinyTL's counting says selection
should cost. On a device that keeps no count of its memory, only time is judged.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import driftproof as dp
from driftproof.analyses import count_memory, method_memory, peak_memory, synchronizer, time_steps
from driftproof.bench.environment import hardware
from driftproof.models import build_model
from tables import format_protocol, format_ratios, write_results

MARGIN = dp.ConfidenceDifference(margin=-0.2)
CONTESTANTS: dict[str, dict[str, Any]] = {
    "tent": {},
    "tent+crowd": {"select": MARGIN},
    "tent+crowd, frozen in bf16": {"select": MARGIN, "source_precision": "bf16"},
}
WARM_UP = 8  # by then every engine has recorded
MEMORY = "peak memory: tent+crowd, fastest / tent"
TIME = "time: tent+crowd, fastest / tent"


def adapter_for(name: str, model: nn.Module, settings: dict[str, Any]) -> dp.Adapter:
    """A contestant, as in the paper's segmentation but for shares of the statistics that are not learned."""
    blend = dp.statistics.Blend(0.5, momentum=0.1)
    return dp.tent(model, lr=1e-6, statistics=blend, **CONTESTANTS[name], **settings)


def peak(name: str, model: nn.Module, images: Tensor, settings: dict[str, Any]) -> int | None:
    """Bytes that a contestant needs at most, its copies of the network included."""

    def run() -> None:
        adapter = adapter_for(name, model, settings)
        for _ in range(WARM_UP):
            adapter(images)

    return peak_memory(run, images.device)


def limits(model: nn.Module, images: Tensor) -> dict[str, float]:
    """What the ratios may be."""
    counted = count_memory(model, images.shape[1:])
    one, other = (method_memory(name, counted, batch=len(images)) for name in ("tent+crowd", "tent"))
    return {TIME: 1.3, MEMORY: 1.15 * one / other}


def judged(times: dict[str, float], peaks: dict[str, int | None]) -> dict[str, float]:
    """The ratios that have limits."""
    fastest = min((name for name in CONTESTANTS if name != "tent"), key=lambda name: times[name])
    ratios, ours, theirs = {TIME: times[fastest] / times["tent"]}, peaks[fastest], peaks["tent"]
    return ratios | {MEMORY: ours / theirs} if ours and theirs else ratios


def told(found: dict[str, Any]) -> str:
    """The same in tables."""
    lines, times = ["| | ms | / tent | peak, MiB |", "|---|---:|---:|---:|"], found["ms"]
    for name, taken in times.items():
        peak = found["peak"][name]
        above = "" if peak is None else f"{peak / 2**20:.0f}"
        lines.append(f"| {name} | {taken:.2f} | {taken / times['tent']:.3f} | {above} |")
    return "\n".join(
        [*lines, "", *format_ratios(found["ratios"], found["limits"]), *format_protocol(found["protocol"])]
    )


def main() -> int:
    """Measure, print, and fail if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", default="deeplabv3plus_resnet50")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--height", type=int, default=800)
    parser.add_argument("--width", type=int, default=1455)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--engine", default="eager", choices=["eager", "compile", "graph"])
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="folder for scenes.json and the tables in scenes.md")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    settings = {name: getattr(arguments, name) for name in ("engine", "precision", "channels_last")}
    torch.manual_seed(0)
    model = build_model(arguments.network).to(device)
    images = torch.rand(arguments.batch, 3, arguments.height, arguments.width, device=device)
    peaks = {name: peak(name, model, images, settings) for name in CONTESTANTS}
    adapters = {name: adapter_for(name, model, settings) for name in CONTESTANTS}
    steps = {name: partial(adapter, images) for name, adapter in adapters.items()}
    timings = time_steps(steps, trials=arguments.trials, warm_up=WARM_UP, synchronize=synchronizer(device))
    times, allowed = {name: 1e3 * timing.median for name, timing in timings.items()}, limits(model, images)
    ratios = judged(times, peaks)
    protocol = {
        "hardware": hardware(device),
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "network": arguments.network,
        "frames": " × ".join(map(str, images.shape)),
        "trials": arguments.trials,
        **settings,
    }
    found = {"protocol": protocol, "ms": times, "peak": peaks, "ratios": ratios, "limits": allowed}
    print(told(found))
    if arguments.out:
        write_results(arguments.out, "scenes", found, scenes=told(found))
    return 0 if all(ratio <= allowed[name] for name, ratio in ratios.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
