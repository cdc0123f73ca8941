"""Time and memory of one step of each method: memory also by a formula, all methods in one run."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from driftproof.adapter import Adapter
from driftproof.analyses import (
    FORMULAS,
    SCENE_FORMULAS,
    MemoryCounts,
    count_memory,
    peak_memory,
    synchronizer,
    time_steps,
)
from driftproof.bench.environment import ResourceMonitor
from driftproof.bench.methods import benchmark_guards, build_method
from driftproof.bench.runner import ProgressCallback, ProgressEvent, ResourceProvider, RunSettings, stage_progress
from driftproof.bench.spec import Spec
from driftproof.bench.store import Row, Run
from driftproof.validation import check_choice

__all__ = ["measure_costs", "run_costs"]

_TASK_OPTIONS = ("trials", "warm_up")
_GRAPH_WARMUP = 8
"""Batches after which every engine has reached its final mode; all run the first batches of a shape eagerly."""


def run_costs(
    spec: Spec,
    run: Run,
    resources: ResourceProvider,
    rounds: int,
    settings: RunSettings,
    callback: ProgressCallback,
) -> None:
    """Measure what one step of each method costs.

    The methods take turns, so that their ratios are comparable even on a busy machine. Published methods run without a
    guard, so no step pays for the passes that measure health. Memory is counted by
    `driftproof.analyses.count_memory`, and measured where the device keeps count. Each row is one method.

    Args:
        spec: The run. `method` lists the methods. `options` holds `trials` and `warm_up`, and options of methods:
            `tent.lr` also applies to `tent+crowd`, `tent+crowd.margin` only to that.
        run: Its results on disk, locked by the caller.
        resources: Provides model, stream and source data.
        rounds: Ignored.
        settings: How to execute it.
        callback: Receives progress events.
    """
    if run.length:
        return
    names, options, monitor = spec.method.split(","), dict(spec.options), ResourceMonitor(settings.device)
    for option in options:
        if option.partition(".")[0] not in {*names, *map(_base, names)}:
            check_choice("option of costs", option, _TASK_OPTIONS)
    model = resources.model(spec).to(settings.device)
    images = next(iter(resources.stream(spec, 1, stage_progress(spec, callback)))).images.to(settings.device)
    run.write_spec(spec, {"image": str(tuple(images.shape[1:])), "batch": str(len(images))})
    trials, warm_up = (int(options.get(name) or 0) for name in _TASK_OPTIONS)
    adapters = {}
    for index, name in enumerate(names):
        callback(ProgressEvent(spec, f"preparing {name}", index, len(names)))
        adapters[name] = _build_adapter(spec, name, model, resources, settings)
    callback(ProgressEvent(spec, "timing", 0))
    rows: list[Row] = [
        {"round": 1, "domain": name} | costs
        for name, costs in measure_costs(adapters, model, images, trials=trials, warm_up=warm_up).items()
    ]
    run.append(rows, [monitor.measure(len(rows)) | settings.step] * len(rows))
    for row in rows:
        callback(ProgressEvent(spec, "measured", len(rows), len(rows), row))


def measure_costs(
    adapters: Mapping[str, Adapter], model: nn.Module, images: Tensor, *, trials: int, warm_up: int
) -> dict[str, dict[str, float | None]]:
    """Measure time and memory of a step of each adapter, taking turns.

    Args:
        adapters: Prepared adapters by method name.
        model: The model they adapt.
        images: The batch they are given.
        trials: Number of timed steps of each.
        warm_up: Number of steps of each before timing.

    Returns:
        By method: `memory`, counted as TinyTL does, in MiB, None without a formula; `peak`, what steps need besides the
        adapter, in bytes, None if the device does not keep count; `milliseconds`, the mean; `median_milliseconds`.
    """
    steps = {name: partial(adapter, images) for name, adapter in adapters.items()}
    peaks = {name: _measure_peak(step, images.device) for name, step in steps.items()}
    timings = time_steps(steps, trials=trials, warm_up=warm_up, synchronize=synchronizer(images.device))
    counted = count_memory(model, images.shape[1:])
    return {
        name: {
            "memory": _formula_memory(name, adapters[name], counted, len(images)),
            "peak": peaks[name],
            "milliseconds": 1e3 * timings[name].mean,
            "median_milliseconds": 1e3 * timings[name].median,
        }
        for name in adapters
    }


def _measure_peak(step: Callable[[], object], device: torch.device) -> int | None:
    steps = _GRAPH_WARMUP if device.type == "cuda" else 0
    return peak_memory(lambda: [step() for _ in range(steps)], device)


def _formula_memory(name: str, adapter: Adapter, counted: MemoryCounts, batch: int) -> float | None:
    formulas = FORMULAS if adapter.last.novelty.ndim == 1 else SCENE_FORMULAS
    return formulas[name].mebibytes(counted, batch=batch) if name in formulas else None


def _base(name: str) -> str:
    return name.partition("+")[0]


def _build_adapter(
    spec: Spec, name: str, model: nn.Module, resources: ResourceProvider, settings: RunSettings
) -> Adapter:
    prefixes = {_base(name), name}
    options = {key.partition(".")[2]: value for key, value in spec.options if key.partition(".")[0] in prefixes}
    guards = {"guard": benchmark_guards(name, options)}
    adapter = build_method(name, model, {**options, "seed": spec.seed, **settings.step, **guards})
    if not adapter.prepared:
        adapter.prepare(resources.source(spec, settings.device))
    return adapter
