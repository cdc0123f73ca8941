"""Measure time and memory of a TENT step with and without selection on driving scenes of the paper's size.

    python benchmarks/scenes.py [--height 800 --width 1455] [--engine graph] [--precision tf32] [--out DIR]

All contestants take turns in one process; medians are compared. The statistics follow the stream, as in the paper. The
limits apply to the faster contestant with selection. Memory may be 1.15 times what TinyTL's formula predicts for
selection; on a device without memory statistics only time is limited.
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
WARM_UP = 8  # by then every engine has captured or compiled
MEMORY = "peak memory: tent+crowd, fastest / tent"
TIME = "time: tent+crowd, fastest / tent"


def make_adapter(name: str, model: nn.Module, settings: dict[str, Any]) -> dp.Adapter:
    """Return a contestant: the paper's segmentation, but with fixed shares of the statistics."""
    blend = dp.statistics.Blend(0.5, momentum=0.1)
    return dp.tent(model, lr=1e-6, statistics=blend, **CONTESTANTS[name], **settings)


def measure_peak(name: str, model: nn.Module, images: Tensor, settings: dict[str, Any]) -> int | None:
    """Return the peak bytes of a contestant, its copies of the network included."""

    def run() -> None:
        adapter = make_adapter(name, model, settings)
        for _ in range(WARM_UP):
            adapter(images)

    return peak_memory(run, images.device)


def compute_limits(model: nn.Module, images: Tensor) -> dict[str, float]:
    """Return the largest ratios allowed."""
    counted = count_memory(model, images.shape[1:])
    one, other = (method_memory(name, counted, batch=len(images)) for name in ("tent+crowd", "tent"))
    return {TIME: 1.3, MEMORY: 1.15 * one / other}


def compute_ratios(times: dict[str, float], peaks: dict[str, int | None]) -> dict[str, float]:
    """Return the ratios that have limits."""
    fastest = min((name for name in CONTESTANTS if name != "tent"), key=lambda name: times[name])
    ratios, ours, theirs = {TIME: times[fastest] / times["tent"]}, peaks[fastest], peaks["tent"]
    return ratios | {MEMORY: ours / theirs} if ours and theirs else ratios


def format_tables(results: dict[str, Any]) -> str:
    """Return times, memory and ratios as Markdown."""
    lines, times = ["| | ms | / tent | peak, MiB |", "|---|---:|---:|---:|"], results["ms"]
    for name, taken in times.items():
        peak = results["peak"][name]
        above = "" if peak is None else f"{peak / 2**20:.0f}"
        lines.append(f"| {name} | {taken:.2f} | {taken / times['tent']:.3f} | {above} |")
    return "\n".join(
        [*lines, "", *format_ratios(results["ratios"], results["limits"]), *format_protocol(results["protocol"])]
    )


def main() -> int:
    """Measure, print, write, and return 1 if a limit is exceeded."""
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
    peaks = {name: measure_peak(name, model, images, settings) for name in CONTESTANTS}
    adapters = {name: make_adapter(name, model, settings) for name in CONTESTANTS}
    steps = {name: partial(adapter, images) for name, adapter in adapters.items()}
    timings = time_steps(steps, trials=arguments.trials, warm_up=WARM_UP, synchronize=synchronizer(device))
    times, allowed = {name: 1e3 * timing.median for name, timing in timings.items()}, compute_limits(model, images)
    ratios = compute_ratios(times, peaks)
    protocol = {
        "hardware": hardware(device),
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "network": arguments.network,
        "frames": " × ".join(map(str, images.shape)),
        "trials": arguments.trials,
        **settings,
    }
    results = {"protocol": protocol, "ms": times, "peak": peaks, "ratios": ratios, "limits": allowed}
    print(format_tables(results))
    if arguments.out:
        write_results(arguments.out, "scenes", results, scenes=format_tables(results))
    return 0 if all(ratio <= allowed[name] for name, ratio in ratios.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
