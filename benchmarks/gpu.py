"""The step on a GPU: every engine and precision against a plain eager TENT loop and against what the hardware allows.

    python benchmarks/gpu.py [--batch 200] [--trials 40] [--out DIR]

The plain loop is TENT as public reference code writes it, with PyTorch's defaults. All contestants take turns in one
process; medians are compared. Ratios are those of steps in a row, as a stream is worked through, with a wait for the
device after every ten; the time of a step that is waited for alone stands beside. The two floors are what a perfectly
fused step would still need: the bytes that have to cross memory over the measured bandwidth, and the multiplications
over the measured rate of large matrix products.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import driftproof as dp
from driftproof.analyses import peak_memory, synchronizer, time_steps
from driftproof.bench.environment import hardware
from driftproof.models import build
from step import tent_by_hand
from tables import conditions, ratio_table, write

LIMITS = {
    "tf32: tent+crowd, recorded / plain loop": 0.42,
    "bf16: tent+crowd, recorded / plain loop": 0.25,
    "tf32: tent+crowd / tent, both recorded": 1.40,
    "tf32: peak memory, tent+crowd, recorded / plain loop": 1.10,
}
"""For the graph engine, which computes what the eager one does, to the last bit: `agreement.py` shows it."""
PRECISIONS = {"tf32": torch.float32, "bf16": torch.bfloat16}
ENGINES = ("eager", "graph", "compile")
ROW = 10
KINDS = {
    "convolutions": ("xmma", "conv", "cutlass", "nvjet", "gemm"),
    "normalization": ("_statistics", "_normalized", "_gradient"),
}


def contestants(model: Callable[[], nn.Module]) -> dict[str, Callable[[Tensor], Tensor]]:
    """Everybody who takes a turn."""
    found: dict[str, Callable[[Tensor], Tensor]] = {"plain loop": tent_by_hand(model())}
    for precision in PRECISIONS:
        for engine in ENGINES:
            settings: dict[str, Any] = {"engine": engine, "precision": precision, "channels_last": True}
            found[f"{precision} {engine} tent"] = dp.tent(model(), **settings)
            found[f"{precision} {engine} tent+crowd"] = dp.tent(model(), select=dp.ConfidenceDifference(), **settings)
    return found


def same_answers(everybody: dict[str, Callable[[Tensor], Tensor]], images: Tensor) -> bool:
    """Whether recorded steps answer as eager ones do, to the last bit, until all are recorded and some more."""
    pairs = [(name, name.replace("graph", "eager")) for name in everybody if " graph " in name]
    return all(
        torch.equal(everybody[one](images), everybody[other](images)) for _ in range(ROW) for one, other in pairs
    )


def in_a_row(step: Callable[[Tensor], Tensor], images: Tensor) -> None:
    """Ten steps, none waited for."""
    for _ in range(ROW):
        step(images)


def traffic(model: nn.Module, images: Tensor) -> tuple[int, int, int]:
    """Elements that one forward, and one backward to the affine parameters, have to move; and the multiplications.

    Forward: every convolution reads its input and writes its output; normalization and ReLU ride along. Backward: every
    convolution reads the gradient of its output and writes that of its input, and every normalization reads its input.
    """
    counts = {"conv": 0, "norm": 0, "products": 0}

    def convolved(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        counts["conv"] += inputs[0].numel() + output.numel()
        counts["products"] += output.numel() * layer.weight[0].numel()

    def normalized(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        counts["norm"] += inputs[0].numel()

    kinds: dict[type, Callable[..., None]] = {nn.Conv2d: convolved, nn.BatchNorm2d: normalized}
    hooks = [module.register_forward_hook(kinds[type(module)]) for module in model.modules() if type(module) in kinds]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return counts["conv"], counts["conv"] + counts["norm"], counts["products"]


def bandwidth(device: torch.device) -> float:
    """Bytes per second that a large copy moves, reading and writing."""
    source = torch.empty(2**28, device=device)
    target = torch.empty_like(source)
    taken = time_steps({"copy": lambda: target.copy_(source)}, trials=20, warm_up=3, synchronize=synchronizer(device))
    return 2 * source.numel() * source.element_size() / taken["copy"].median


def rate(device: torch.device, dtype: torch.dtype) -> float:
    """Multiplications per second of a large matrix product."""
    size = 8192
    left, right = (torch.rand(size, size, device=device, dtype=dtype) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        taken = time_steps({"product": lambda: left @ right}, trials=20, warm_up=3, synchronize=synchronizer(device))
    finally:
        torch.set_float32_matmul_precision(before)
    return size**3 / taken["product"].median


def floors(model: nn.Module, images: Tensor) -> dict[str, dict[str, float]]:
    """Milliseconds below which no step can be, by precision and method."""
    forward, backward, products = traffic(model, images)
    speed, found = bandwidth(images.device), {}
    for name, dtype in PRECISIONS.items():
        size, products_per_second = dtype.itemsize, rate(images.device, dtype)
        for method, forwards in (("tent", 1), ("tent+crowd", 2)):
            found[f"{name} {method}"] = {
                "bytes": 1e3 * size * (forwards * forward + backward) / speed,
                "operations": 1e3 * (forwards + 1) * products / products_per_second,
            }
    return found


def peaks(model: Callable[[], nn.Module], images: Tensor) -> dict[str, int | None]:
    """Bytes that each needs at most, its copies of the network included."""

    def plain() -> None:
        step = tent_by_hand(model())
        in_a_row(step, images)

    def ours(**settings: Any) -> None:  # noqa: ANN401  # relayed
        adapter = dp.tent(model(), select=dp.ConfidenceDifference(), channels_last=True, **settings)
        in_a_row(adapter, images)

    runs = {"plain loop": plain} | {
        f"{precision} {engine} tent+crowd": partial(ours, precision=precision, engine=engine)
        for precision in PRECISIONS
        for engine in ENGINES[1:]
    }
    found = {}
    for name, run in runs.items():
        torch.cuda.empty_cache()
        found[name] = peak_memory(run, images.device)
    return found


def judged(times: dict[str, float], memory: dict[str, int | None]) -> dict[str, float]:
    """The ratios that have limits."""
    recorded = {precision: f"{precision} graph tent" for precision in PRECISIONS}
    numbers = (
        *(times[f"{tent}+crowd"] / times["plain loop"] for tent in recorded.values()),
        times[f"{recorded['tf32']}+crowd"] / times[recorded["tf32"]],
        (memory[f"{recorded['tf32']}+crowd"] or 0) / (memory["plain loop"] or 1),
    )
    return dict(zip(LIMITS, numbers, strict=True))


def filling(model: Callable[[], nn.Module], images: Tensor) -> dict[str, dict[str, float]]:
    """Microseconds of a recorded TENT step by kind of kernel: without selection, since nothing runs beside it."""
    from torch.profiler import ProfilerActivity, profile

    found = {}
    for precision in PRECISIONS:
        settings: dict[str, Any] = {"engine": "graph", "precision": precision, "channels_last": True}
        adapter = dp.tent(model(), **settings)
        in_a_row(adapter, images)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            in_a_row(adapter, images)
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


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, in the order in which it is told."""
    device = torch.device(arguments.device)
    images = torch.rand(arguments.batch, 3, 32, 32, device=device)

    def model() -> nn.Module:
        torch.manual_seed(0)
        return build("wrn40_2").to(device)

    def medians(steps: dict[str, Callable[[], object]], each: int) -> dict[str, float]:
        timings = time_steps(steps, trials=arguments.trials, warm_up=3, synchronize=synchronizer(device))
        return {name: 1e3 * timing.median / each for name, timing in timings.items()}

    everybody = contestants(model)
    if not same_answers(everybody, images):
        raise RuntimeError("A recorded step answered otherwise than the eager one.")
    times = medians({name: partial(in_a_row, step, images) for name, step in everybody.items()}, ROW)
    alone = medians({name: partial(step, images) for name, step in everybody.items()}, 1)
    del everybody
    memory = peaks(model, images)
    return {
        "protocol": {
            "hardware": hardware(device),
            "host": hardware(torch.device("cpu")),
            "torch": torch.__version__,
            "driftproof": dp.__version__,
            "network": f"WRN-40-2, batch {arguments.batch}",
            "trials": arguments.trials,
        },
        "ratios": judged(times, memory),
        "ms": times,
        "ms alone": alone,
        "floors": floors(model(), images),
        "peak": memory,
        "filling": filling(model, images),
    }


def ratios(found: dict[str, Any]) -> str:
    """What has limits, as a table, and where it was measured."""
    return "\n".join([*ratio_table(found["ratios"], LIMITS), *conditions(found["protocol"])])


def details(found: dict[str, Any]) -> str:
    """Everything else in tables."""
    plain = found["ms"]["plain loop"]
    lines = [
        "| | ms | / plain loop | ms alone | floor, ms | / floor | peak, MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, taken in found["ms"].items():
        precision, _, method = name.partition(" ")
        floor = found["floors"].get(f"{precision} {method.partition(' ')[2]}")
        below = " | " if floor is None else f"{max(floor.values()):.2f} | {taken / max(floor.values()):.1f}"
        peak = found["peak"].get(name)
        above = "" if peak is None else f"{peak / 2**20:.0f}"
        alone = found["ms alone"][name]
        lines.append(f"| {name} | {taken:.2f} | {taken / plain:.3f} | {alone:.2f} | {below} | {above} |")
    lines += ["", "| floor | bytes, ms | operations, ms |", "|---|---:|---:|"]
    lines += [f"| {name} | {low['bytes']:.2f} | {low['operations']:.2f} |" for name, low in found["floors"].items()]
    kinds = [*KINDS, "other", "launches"]
    lines += ["", f"| recorded tent, µs | {' | '.join(kinds)} |", "|---|" + "---:|" * len(kinds)]
    for precision, spent in found["filling"].items():
        lines.append(f"| {precision} | {' | '.join(f'{spent[kind]:.0f}' for kind in kinds)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Check, time, print, and fail if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="folder for gpu.json and the tables in ratios.md and gpu.md")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("This measures a CUDA device, and there is none.")
        return 2
    found = measured(arguments)
    print(ratios(found), details(found), sep="\n")
    if arguments.out:
        write(arguments.out, "gpu", found, ratios=ratios(found), gpu=details(found))
    return 0 if all(ratio <= LIMITS[name] for name, ratio in found["ratios"].items()) else 1


if __name__ == "__main__":
    sys.exit(main())
