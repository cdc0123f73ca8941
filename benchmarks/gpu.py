"""Time the step on a GPU: engines and precisions against hand-written loops and the limits of the hardware.

    python benchmarks/gpu.py [--only eager captured resnet50] [--limits-only] [--compile] [--trials 15] [--out DIR]

Three groups of contestants; `--only` chooses among them, and `--limits-only` leaves out what the ratios do not need:

- eager: the eager engine against hand-written loops, all with PyTorch's default precision and memory layout.
- resnet50: as eager, for a ResNet-50 at 224 × 224, of torchvision where it is installed.
- captured: CUDA graphs in tf32 and bf16, channels last; with `--compile` also the engine "compile".

The contestants of a group take turns in one process, forwards and backwards. A ratio is the median of the ratios within
a turn, since the speed of a host changes within seconds. A timed run is several steps in a row with one synchronization
at the end; the time of a single synchronized step is reported separately. Two floors bound a
perfectly fused step: the bytes it moves over the measured bandwidth, and its multiplications over the measured rate of
large matrix products. With `--out`, each part of the results is written as soon as it is known.
The script exits with 1 if a ratio or a time is above its limit.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import driftproof as dp
from by_hand import tent_by_hand, tent_crowd_by_hand
from driftproof.analyses import peak_memory, synchronizer, time_steps, time_trials
from driftproof.bench.environment import hardware
from driftproof.models import ResNet50, build_model
from health_cost import LIMIT, measure_health_cost
from tables import format_protocol, format_ratios, write_results
from third_party import import_torchvision

Step = Callable[[Tensor], Tensor]

GROUPS = ("eager", "resnet50", "captured")
RATIOS: dict[str, tuple[str, str, float | None]] = {
    "tf32: tent+crowd, captured / plain loop": ("tf32 graph tent+crowd", "plain loop, second run", None),
    "bf16: tent+crowd, captured / plain loop": ("bf16 graph tent+crowd", "plain loop, second run", None),
    "tf32: tent+crowd / tent, both captured": ("tf32 graph tent+crowd", "tf32 graph tent", 1.40),
    "tf32: tent with Blend(0.5) / tent, both captured": ("tf32 graph tent, Blend(0.5)", "tf32 graph tent", 1.10),
    "WRN-40-2, eager: tent / by hand": ("eager tent", "plain loop", 1.05),
    "WRN-40-2, eager: tent+crowd / by hand": ("eager tent+crowd", "plain loop, tent+crowd", 1.05),
    "ResNet-50, eager: tent / by hand": ("ResNet-50, eager tent", "ResNet-50, plain loop", 1.05),
    "ResNet-50, eager: tent+crowd / by hand": (
        "ResNet-50, eager tent+crowd",
        "ResNet-50, plain loop, tent+crowd",
        1.05,
    ),
}
"""Ratios of times: numerator, denominator and limit. `agreement.py` checks that captured steps compute the same.

A captured step depends on the device, the plain loop on its host: their ratio says what capturing brings on a machine,
and has no limit. `MILLISECONDS` limits captured steps themselves.
"""
MEMORY = "tf32: peak memory, tent+crowd, captured / plain loop"
HEALTH = {
    f"{precision}: {method} with health / without, both captured": (precision, method)
    for precision in ("bf16", "tf32")
    for method in ("tent", "tent+crowd")
}
LIMITS = (
    {name: limit for name, (_, _, limit) in RATIOS.items() if limit} | {MEMORY: 1.10} | dict.fromkeys(HEALTH, LIMIT)
)
MILLISECONDS = {"tf32 graph tent+crowd": 6.1, "bf16 graph tent+crowd": 3.7}
"""Limits on times, judged on an H200 only."""
PRECISIONS = {"tf32": torch.float32, "bf16": torch.bfloat16}
ROW = 10
"""Steps in a row for WRN-40-2."""
RESNET_BATCH, RESNET_ROW = 64, 3
KINDS = {
    "convolutions": ("xmma", "conv", "cutlass", "nvjet", "gemm"),
    "normalization": ("_batch_norm_",),
}
"""Parts of the names of kernels, by what the kernels compute."""


def make_eager(make_network: Callable[[], nn.Module], prefix: str = "") -> dict[str, Step]:
    """Return the hand-written loops and the eager adapters, with PyTorch's defaults."""
    return {
        f"{prefix}plain loop": tent_by_hand(make_network()),
        f"{prefix}eager tent": dp.tent(make_network(), engine="eager"),
        f"{prefix}plain loop, tent+crowd": tent_crowd_by_hand(make_network()),
        f"{prefix}eager tent+crowd": dp.tent(make_network(), select=dp.ConfidenceDifference(), engine="eager"),
    }


def make_captured(
    make_network: Callable[[], nn.Module], engines: tuple[str, ...], *, limits_only: bool = False
) -> dict[str, Step]:
    """Return the plain loop once more, and adapters of all engines and precisions with channels last."""
    steps: dict[str, Step] = {"plain loop, second run": tent_by_hand(make_network())}
    limited = {name for one, other, _ in RATIOS.values() for name in (one, other)} | MILLISECONDS.keys()
    for precision in PRECISIONS:
        for engine in engines:
            settings: dict[str, Any] = {"engine": engine, "precision": precision, "channels_last": True}
            for method, select in (("tent", None), ("tent+crowd", dp.ConfidenceDifference())):
                name = f"{precision} {engine} {method}"
                if name in limited or not limits_only:
                    steps[name] = dp.tent(make_network(), select=select, **settings)
    blend: dict[str, Any] = {"engine": "graph", "precision": "tf32", "channels_last": True}
    steps["tf32 graph tent, Blend(0.5)"] = dp.tent(make_network(), statistics=dp.statistics.Blend(0.5), **blend)
    return steps


def check_same_outputs(steps: dict[str, Step], images: Tensor) -> None:
    """Raise if captured steps do not return the eager engine's logits bit for bit, before and after capture."""
    pairs = [(name, name.replace("graph", "eager")) for name in steps if " graph " in name]
    for one, other in [pair for _ in range(ROW) for pair in pairs if pair[1] in steps]:
        if not torch.equal(steps[one](images), steps[other](images)):
            raise RuntimeError(f"The logits of {one!r} differ from those of {other!r}.")


def run_steps(step: Step, images: Tensor, count: int = ROW) -> None:
    """Take several steps without synchronizing."""
    for _ in range(count):
        step(images)


def time_all(steps: dict[str, Step], images: Tensor, *, trials: int, row: int) -> dict[str, list[float]]:
    """Return the milliseconds per step of all contestants, which take turns, in every trial."""
    runs: dict[str, Callable[[], object]] = {n: partial(run_steps, step, images, row) for n, step in steps.items()}
    seconds = time_trials(runs, trials=trials, warm_up=3, synchronize=synchronizer(images.device), turns=True)
    return {name: [round(1e3 * taken / row, 4) for taken in trials] for name, trials in seconds.items()}


def medians(trials: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of each contestant."""
    return {name: statistics.median(times) for name, times in trials.items()}


def count_traffic(model: nn.Module, images: Tensor) -> tuple[int, int, int]:
    """Count the elements a forward and a backward pass have to move, and the multiplications.

    Forward: every convolution reads its input and writes its output; normalization and ReLU are fused into it.
    Backward, to the affine parameters: every convolution reads the gradient of its output and writes that of its input,
    and every normalization reads its input.
    """
    counts = {"conv": 0, "norm": 0, "products": 0}

    def count_convolution(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        counts["conv"] += inputs[0].numel() + output.numel()
        counts["products"] += output.numel() * layer.weight[0].numel()

    def count_normalization(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        counts["norm"] += inputs[0].numel()

    kinds: dict[type, Callable[..., None]] = {nn.Conv2d: count_convolution, nn.BatchNorm2d: count_normalization}
    hooks = [module.register_forward_hook(kinds[type(module)]) for module in model.modules() if type(module) in kinds]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return counts["conv"], counts["conv"] + counts["norm"], counts["products"]


def measure_bandwidth(device: torch.device) -> float:
    """Return the bytes per second that a large copy reads and writes."""
    source = torch.empty(2**28, device=device)
    target = torch.empty_like(source)
    taken = time_steps({"copy": lambda: target.copy_(source)}, trials=20, warm_up=3, synchronize=synchronizer(device))
    return 2 * source.numel() * source.element_size() / taken["copy"].median


def measure_matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the multiplications per second of a large matrix product."""
    size = 8192
    left, right = (torch.rand(size, size, device=device, dtype=dtype) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        taken = time_steps({"product": lambda: left @ right}, trials=20, warm_up=3, synchronize=synchronizer(device))
    finally:
        torch.set_float32_matmul_precision(before)
    return size**3 / taken["product"].median


def compute_floors(model: nn.Module, images: Tensor) -> dict[str, dict[str, float]]:
    """Return the least milliseconds of a step, by precision and method."""
    forward, backward, products = count_traffic(model, images)
    bandwidth, floors = measure_bandwidth(images.device), {}
    for name, dtype in PRECISIONS.items():
        size, rate = dtype.itemsize, measure_matmul_rate(images.device, dtype)
        for method, forwards in (("tent", 1), ("tent+crowd", 2)):
            floors[f"{name} {method}"] = {
                "bytes": 1e3 * size * (forwards * forward + backward) / bandwidth,
                "operations": 1e3 * (forwards + 1) * products / rate,
            }
    return floors


def measure_peaks(
    make_network: Callable[[], nn.Module], images: Tensor, engines: tuple[str, ...]
) -> dict[str, int | None]:
    """Return the peak bytes of each contestant, its copies of the network included."""

    def run_plain_loop() -> None:
        run_steps(tent_by_hand(make_network()), images)

    def run_adapter(**settings: Any) -> None:  # noqa: ANN401  # passed on
        run_steps(dp.tent(make_network(), select=dp.ConfidenceDifference(), channels_last=True, **settings), images)

    runs = {"plain loop": run_plain_loop} | {
        f"{precision} {engine} tent+crowd": partial(run_adapter, precision=precision, engine=engine)
        for precision in PRECISIONS
        for engine in engines
        if engine != "eager"
    }
    peaks = {}
    for name, run in runs.items():
        torch.cuda.empty_cache()
        peaks[name] = peak_memory(run, images.device)
    return peaks


def compute_ratios(trials: dict[str, list[float]], peaks: dict[str, int | None]) -> dict[str, float]:
    """Return the ratios of those contestants that were measured."""
    pairs = {name: (one, other) for name, (one, other, _) in RATIOS.items() if one in trials and other in trials}
    ratios = {
        name: statistics.median(ours / theirs for ours, theirs in zip(trials[one], trials[other], strict=True))
        for name, (one, other) in pairs.items()
    }
    ours, theirs = peaks.get("tf32 graph tent+crowd"), peaks.get("plain loop")
    return ratios | {MEMORY: ours / theirs} if ours and theirs else ratios


def measure_health(make_network: Callable[[], nn.Module], images: Tensor) -> Iterator[tuple[str, float]]:
    """Yield what health costs, as ratios of times of captured steps, each with its name."""
    settings: dict[str, Any] = {"engine": "graph", "channels_last": True}
    for name, (precision, method) in HEALTH.items():
        yield name, measure_health_cost(make_network, images, select="crowd" in method, precision=precision, **settings)


def profile_kernels(make_network: Callable[[], nn.Module], images: Tensor) -> dict[str, dict[str, float]]:
    """Return the microseconds of a captured TENT step by kind of kernel.

    Without selection, because nothing runs on a second stream then.
    """
    from torch.profiler import ProfilerActivity, profile

    found = {}
    for precision in PRECISIONS:
        settings: dict[str, Any] = {"engine": "graph", "precision": precision, "channels_last": True}
        adapter = dp.tent(make_network(), **settings)
        run_steps(adapter, images)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            run_steps(adapter, images)
            torch.cuda.synchronize()
        spent = dict.fromkeys((*KINDS, "other"), 0.0)
        launches = 0
        for event in profiled.events() or ():
            if event.device_type.name == "CUDA":
                kind = next((kind for kind, words in KINDS.items() if any(w in event.name for w in words)), "other")
                spent[kind] += event.device_time / ROW
                launches += 1
        found[precision] = {**spent, "launches": launches / ROW}
    return found


def build_resnet50() -> nn.Module:
    """Return torchvision's ResNet-50, or ours where torchvision is missing."""
    torch.manual_seed(0)
    try:
        return import_torchvision().models.resnet50(weights=None)  # type: ignore[no-any-return]
    except ImportError:
        return ResNet50()


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the chosen groups; yields all results so far after each part."""
    device, groups = torch.device(arguments.device), arguments.only or GROUPS
    engines = ("eager", "graph", "compile") if arguments.compile else ("eager", "graph")
    images = torch.rand(arguments.batch, 3, 32, 32, device=device)

    def make_network() -> nn.Module:
        torch.manual_seed(0)
        return build_model("wrn40_2").to(device)

    protocol = {
        "hardware": hardware(device),
        "host": hardware(torch.device("cpu")),
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "trials": arguments.trials,
    }
    results: dict[str, Any] = {"protocol": protocol, "ratios": {}, "ms": {}, "ms alone": {}}
    results |= {"ms of trials": {}, "floors": {}, "peak": {}, "kernels": {}}
    make_steps: dict[str, Callable[[], dict[str, Step]]] = {
        "eager": lambda: make_eager(make_network),
        "resnet50": lambda: make_eager(lambda: build_resnet50().to(device), "ResNet-50, "),
        "captured": lambda: make_captured(make_network, engines, limits_only=arguments.limits_only),
    }
    for group in [group for group in make_steps if group in groups]:
        is_large, steps = group == "resnet50", make_steps[group]()
        if is_large:
            kind = type(build_resnet50()).__module__
            protocol["second network"] = f"{kind}.ResNet-50, batch {RESNET_BATCH}, 224 × 224"
        else:
            protocol["network"] = f"WRN-40-2, batch {arguments.batch}"
        batch, row = (torch.rand(RESNET_BATCH, 3, 224, 224, device=device), RESNET_ROW) if is_large else (images, ROW)
        check_same_outputs(steps, batch)
        trials = time_all(steps, batch, trials=arguments.trials, row=row)
        results["ratios"] |= compute_ratios(trials, {})  # of contestants that took turns
        results["ms"] |= medians(trials)
        results["ms of trials"] |= trials
        yield results
        if not arguments.limits_only and not is_large:
            results["ms alone"] |= medians(time_all(steps, batch, trials=arguments.trials, row=1))
        del steps, batch
    if "captured" in groups:
        for name, ratio in measure_health(make_network, images):
            results["ratios"][name] = ratio
            yield results
        results["peak"] = measure_peaks(make_network, images, engines)
        results["ratios"] |= compute_ratios({}, results["peak"])
        yield results
        if not arguments.limits_only:
            results["floors"] = compute_floors(make_network(), images)
            results["kernels"] = profile_kernels(make_network, images)
            yield results


def format_limits(results: dict[str, Any]) -> str:
    """Return everything that has a limit, and the protocol, as Markdown."""
    lines = format_ratios(results["ratios"], LIMITS)
    shown = {name: limit for name, limit in MILLISECONDS.items() if name in results["ms"]}
    lines += [""] if shown else []
    lines += [f"- {name}: {results['ms'][name]:.2f} ms; on an H200 at most {most} ms" for name, most in shown.items()]
    return "\n".join([*lines, *format_protocol(results["protocol"])])


def format_details(results: dict[str, Any]) -> str:
    """Return times, peak memory, floors and kernels as Markdown."""
    lines = [
        "| | ms | / plain loop | ms alone | floor, ms | / floor | peak, MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, taken in results["ms"].items():
        plain = results["ms"][_reference(name)]
        precision, _, method = name.partition(" ")
        floor = results["floors"].get(f"{precision} {method.partition(' ')[2]}")
        above = " | " if floor is None else f"{max(floor.values()):.2f} | {taken / max(floor.values()):.1f}"
        peak = results["peak"].get(name)
        memory = "" if peak is None else f"{peak / 2**20:.0f}"
        alone = f"{results['ms alone'][name]:.2f}" if name in results["ms alone"] else ""
        lines.append(f"| {name} | {taken:.2f} | {taken / plain:.3f} | {alone} | {above} | {memory} |")
    if results["floors"]:
        lines += ["", "| floor | bytes, ms | operations, ms |", "|---|---:|---:|"]
    lines += [f"| {name} | {low['bytes']:.2f} | {low['operations']:.2f} |" for name, low in results["floors"].items()]
    kinds = [*KINDS, "other", "launches"]
    if results["kernels"]:
        lines += ["", f"| captured tent, µs | {' | '.join(kinds)} |", "|---|" + "---:|" * len(kinds)]
    for precision, spent in results["kernels"].items():
        lines.append(f"| {precision} | {' | '.join(f'{spent[kind]:.0f}' for kind in kinds)} |")
    return "\n".join(lines) + "\n"


def _reference(name: str) -> str:
    """Return the plain loop that took turns with a contestant."""
    if name.startswith("ResNet-50"):
        return "ResNet-50, plain loop"
    return "plain loop, second run" if name.startswith(("tf32", "bf16", "plain loop, second run")) else "plain loop"


def within_limits(results: dict[str, Any]) -> bool:
    """Whether all ratios with a limit, and on an H200 all times with one, are within it."""
    times = results["ms"] if "H200" in results["protocol"]["hardware"] else {}
    pairs = [(results["ratios"], LIMITS), (times, MILLISECONDS)]
    return all(found[name] <= limit for found, limits in pairs for name, limit in limits.items() if name in found)


def main() -> int:
    """Check, time, print, write, and return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=GROUPS, help="these groups; otherwise all")
    parser.add_argument("--limits-only", action="store_true", help="leave out what the ratios do not need")
    parser.add_argument("--compile", action="store_true", help="also measure the engine 'compile', which takes minutes")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="folder for gpu.json and the tables in ratios.md and gpu.md")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("Expected a CUDA device, but there is none.")
        return 2
    results: dict[str, Any] = {}
    for results in measure(arguments):
        print(format_limits(results), flush=True)
        if arguments.out:
            write_results(arguments.out, "gpu", results, ratios=format_limits(results), gpu=format_details(results))
    print(format_details(results))
    return 0 if within_limits(results) else 1


if __name__ == "__main__":
    sys.exit(main())
