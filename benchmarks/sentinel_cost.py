"""Time and memory of a captured `sentinel` step beside `tent+crowd`, for variants from cheap to whole.

    python benchmarks/sentinel_cost.py --out sentinel-cost.json

Every method has a process of its own. They capture their steps at the same time, and are then timed in turns, so that a
clock that changes is the same for all.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

import driftproof as dp
from driftproof.adapter.engines import compiled
from driftproof.models import build_model
from tables import write_json

_MAX_WAIT = 120.0
_STEPS = 10


def variants() -> dict[str, tuple[Callable[..., dp.Adapter], dict[str, Any]]]:
    """The methods to time, by name."""
    return {
        "sentinel": (dp.sentinel, {}),
        "tent+crowd": (dp.tent, {"select": dp.ConfidenceDifference()}),
        "sentinel, three opinions": (dp.sentinel, {"members": "network+source+source_mirror"}),
        "sentinel, no convolutions": (dp.sentinel, {"convolutions": 0.0}),
        "sentinel, all of its layers": (dp.sentinel, {"detector_layers": 1.0}),
        "sentinel, learner alone": (dp.sentinel, {"members": "network"}),
        "sentinel, moving average": (dp.sentinel, {"detector_momentum": 0.999}),
        "paf_kip": (dp.paf_kip, {}),
    }


class Candidate:
    """A method with captured steps."""

    def __init__(self, name: str, device: torch.device) -> None:
        make, options = variants()[name]
        torch.manual_seed(0)
        self.cuda = device.type == "cuda"
        self.images = torch.rand(200 if self.cuda else 4, 3, 32, 32, device=device)
        model = build_model("wrn40_2").to(device)
        begun = time.perf_counter()
        engine = "graph" if self.cuda else "eager"  # a step that cannot be captured is an error
        settings: dict[str, Any] = {"engine": engine, "precision": "bf16", "channels_last": True, "guard": ()}
        self.adapter = make(model, **settings, **options)
        for _ in range(8 if self.cuda else 1):
            self.adapter(self.images)
        self.wait()
        self.times: list[float] = []
        self.seconds_to_capture = round(time.perf_counter() - begun, 1)

    def wait(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize()

    def time_steps(self) -> None:
        """Time a row of steps."""
        self.wait()
        steps = _STEPS if self.cuda else 1
        start = time.perf_counter()
        for _ in range(steps):
            self.adapter(self.images)
        self.wait()
        self.times.append(1e3 * (time.perf_counter() - start) / steps)

    def report(self) -> dict[str, Any]:
        """Milliseconds of a step, and the peak of allocated memory, of its libraries too."""
        times = [round(each, 3) for each in self.times]
        found = {"ms": round(statistics.median(times), 3), "ms_min": min(times), "ms_trials": times}
        found["seconds_to_capture"] = self.seconds_to_capture
        if self.cuda:
            found["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
            found["kernels"] = profile(self.adapter, self.images)
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


def work(
    name: str, place: int, number: int, trials: int, fuse: bool, barrier: Barrier,
    answers: "SimpleQueue[tuple[str, dict[str, Any]]]",
) -> None:  # fmt: skip
    """Capture a method's step, time it when it is its turn, and answer."""
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not fuse:
        setattr(compiled, "can_compile", lambda device: False)  # noqa: B010  # it is imported there, not exported
    candidate, error = None, "not captured"
    try:
        candidate = Candidate(name, device)
    except Exception as problem:  # one that fails says why, and the others are still measured
        error = f"{type(problem).__name__}: {problem}"[:500]
    for turn in range(trials * number):
        barrier.wait(_MAX_WAIT)
        if candidate is not None and turn % number == place:
            candidate.time_steps()
    for turn in range(number):
        barrier.wait(_MAX_WAIT)
        if turn == place:
            answers.put((name, {"error": error} if candidate is None else candidate.report()))


def main() -> None:
    """Measure every variant, and write what there is after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=tuple(variants()), default=tuple(variants()))
    parser.add_argument("--fuse", action=argparse.BooleanOptionalAction, default=True, help="fuse batch norms")
    arguments = parser.parse_args()
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = {"hardware": hardware, "torch": torch.__version__, "driftproof": dp.__version__}
    found["network"] = "WRN-40-2, batch 200, bf16, channels last, captured" + ("" if arguments.fuse else ", not fused")
    context, number = multiprocessing.get_context("spawn"), len(arguments.only)
    barrier, answers = context.Barrier(number), context.SimpleQueue()
    settings = number, arguments.trials, arguments.fuse, barrier, answers
    for place, name in enumerate(arguments.only):
        context.Process(target=work, args=(name, place, *settings), daemon=True).start()
    for _ in range(number):
        name, measured = answers.get()
        found[name] = measured
        print(name, {key: value for key, value in measured.items() if key not in ("kernels", "ms_trials")}, flush=True)
        write_json(arguments.out, found)


if __name__ == "__main__":
    main()
