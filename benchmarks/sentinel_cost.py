"""Time and memory of a captured `sentinel` step beside `tent+crowd`, for variants from cheap to whole.

python benchmarks/sentinel_cost.py --out sentinel-cost.json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import driftproof as dp
from driftproof.adapter.engines import compiled
from driftproof.models import build_model


def variants() -> dict[str, tuple[Callable[..., dp.Adapter], dict[str, Any]]]:
    """The methods to time, by name."""
    return {
        "sentinel": (dp.sentinel, {}),
        "tent+crowd": (dp.tent, {"select": dp.ConfidenceDifference()}),
        "sentinel, no mirror images": (dp.sentinel, {"members": "network+source"}),
        "sentinel, one mirror image": (dp.sentinel, {"members": "network+mirror+source"}),
        "sentinel, moving average": (dp.sentinel, {"detector_momentum": 0.999}),
        "paf_kip": (dp.paf_kip, {}),
    }


def measure(
    make: Callable[..., dp.Adapter], options: dict[str, Any], device: torch.device, trials: int
) -> dict[str, Any]:
    """Milliseconds of a step, in rows of ten, and the peak of allocated memory."""
    torch.manual_seed(0)
    cuda = device.type == "cuda"
    images = torch.rand(200 if cuda else 4, 3, 32, 32, device=device)
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    model = build_model("wrn40_2").to(device)
    begun = time.perf_counter()
    engine = "graph" if cuda else "eager"  # a step that cannot be captured is an error
    adapter = make(model, engine=engine, precision="bf16", channels_last=True, guard=(), **options)
    for _ in range(8 if cuda else 1):
        adapter(images)
    times, ready = [], round(time.perf_counter() - begun, 1)
    for _ in range(trials):
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10 if cuda else 1):
            adapter(images)
        if cuda:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start) / (10 if cuda else 1))
    found: dict[str, Any] = {
        "ms": round(statistics.median(times), 3),
        "ms_min": round(min(times), 3),
        "seconds_to_capture": ready,
    }
    if cuda:
        found["peak_mib"] = round((torch.cuda.max_memory_allocated() - before) / 2**20)
        found["kernels"] = profile(adapter, images)
    return found


def profile(adapter: dp.Adapter, images: torch.Tensor, steps: int = 5) -> dict[str, Any]:
    """Number and time of a step's kernels, and the ones that take longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            adapter(images)
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    longest = [(event.key[:90], event.count / steps, event.self_device_time_total / steps / 1e3) for event in events]
    return {
        "number": sum(count for _, count, _ in longest),
        "ms": round(sum(ms for *_, ms in longest), 3),
        "longest": [f"{ms:.3f} ms, {count:g} times: {name}" for name, count, ms in longest[:25]],
    }


def main() -> None:
    """Measure every variant, and write what there is after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=tuple(variants()), default=tuple(variants()))
    parser.add_argument("--fuse", action=argparse.BooleanOptionalAction, default=True, help="fuse batch norms")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not arguments.fuse:
        setattr(compiled, "can_compile", lambda device: False)  # noqa: B010  # it is imported there, not exported
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    found: dict[str, Any] = {"hardware": hardware, "torch": torch.__version__, "driftproof": dp.__version__}
    found["network"] = "WRN-40-2, batch 200, bf16, channels last, captured" + ("" if arguments.fuse else ", not fused")
    for name in arguments.only:
        make, options = variants()[name]
        try:
            found[name] = measure(make, options, device, arguments.trials)
        except Exception as error:  # one that fails says why, and the others are still measured
            found[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(name, {key: value for key, value in found[name].items() if key != "kernels"}, flush=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
