"""What the methods cost: memory by counting, time and memory by measuring, all methods in one run."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from driftproof.adapter import Adapter
from driftproof.analyses import (
    FORMULAS,
    SCENE_FORMULAS,
    Components,
    components,
    peak_memory,
    synchronizer,
    time_steps,
)
from driftproof.bench.environment import ResourceMonitor
from driftproof.bench.methods import build_method
from driftproof.bench.runner import ProgressEvent, RunSettings, ProgressCallback, ResourceProvider, stage_progress
from driftproof.bench.spec import Spec
from driftproof.bench.store import Run, Row
from driftproof.validation import check_choice

__all__ = ["measure_costs", "run_costs"]

_OF_THE_TASK = ("trials", "warm_up")
_UNTIL_RECORDED = 8
"""Batches after which every engine runs as it will go on; the first of a shape runs operation by operation in all."""


def run_costs(spec: Spec, cell: Run, workbench: ResourceProvider, rounds: int, settings: RunSettings, told: ProgressCallback) -> None:
    """Measure what one step of each method of a cell costs.

    The methods take turns within the run, so that their ratios mean something whatever else the machine does. Memory is
    counted by `driftproof.analyses.components`, and measured where the device keeps count. Each row is one method.

    Args:
        spec: The cell; `method` lists the methods, `options` says how many `trials` to take and how many to `warm_up`,
            and as `tent.lr` the options of a method, which `tent+crowd` shares; `tent+crowd.margin` is its own.
        cell: Its place, held by the caller.
        workbench: Where model, images and source data come from.
        rounds: Plays no role.
        settings: How to run it.
        told: Hears how it goes.
    """
    if cell.length:
        return
    names, options, watch = spec.method.split(","), dict(spec.options), ResourceMonitor(settings.device)
    for option in options:
        if option.partition(".")[0] not in {*names, *map(_base, names)}:
            check_choice("option of costs", option, _OF_THE_TASK)
    model = workbench.model(spec).to(settings.device)
    images = next(iter(workbench.stream(spec, 1, stage_progress(spec, told)))).images.to(settings.device)
    cell.write_spec(spec, {"image": str(tuple(images.shape[1:])), "batch": str(len(images))})
    trials, warm_up = (int(options.get(name) or 0) for name in _OF_THE_TASK)
    adapters = {}
    for index, name in enumerate(names):
        told(ProgressEvent(spec, f"preparing {name}", index, len(names)))
        adapters[name] = _adapter(spec, name, model, workbench, settings)
    told(ProgressEvent(spec, "timing", 0))
    rows: list[Row] = [
        {"round": 1, "domain": name} | costs
        for name, costs in measure_costs(adapters, model, images, trials=trials, warm_up=warm_up).items()
    ]
    cell.append(rows, [watch.measure(len(rows)) | settings.step] * len(rows))
    for row in rows:
        told(ProgressEvent(spec, "measured", len(rows), len(rows), row))


def measure_costs(
    adapters: Mapping[str, Adapter], model: nn.Module, images: Tensor, *, trials: int, warm_up: int
) -> dict[str, dict[str, float | None]]:
    """What a step of each adapter costs, all of them taking turns.

    Args:
        adapters: By the name of their method, prepared.
        model: The model they adapt.
        images: The batch they are given.
        trials: How often each is timed.
        warm_up: How often each runs before that.

    Returns:
        For each method `memory`, by TinyTL's counting in MiB, where there is a formula; `peak`, in bytes, what steps
        need besides the adapter, where the device keeps count; `milliseconds`, the mean; and `median_milliseconds`.
    """
    steps = {name: partial(adapter, images) for name, adapter in adapters.items()}
    peaks = {name: _peak(step, images.device) for name, step in steps.items()}
    timings = time_steps(steps, trials=trials, warm_up=warm_up, synchronize=synchronizer(images.device))
    counted = components(model, images.shape[1:])
    return {
        name: {
            "memory": _counted(name, adapters[name], counted, len(images)),
            "peak": peaks[name],
            "milliseconds": 1e3 * timings[name].mean,
            "median_milliseconds": 1e3 * timings[name].median,
        }
        for name in adapters
    }


def _peak(step: Callable[[], object], device: torch.device) -> int | None:
    steps = _UNTIL_RECORDED if device.type == "cuda" else 0
    return peak_memory(lambda: [step() for _ in range(steps)], device)


def _counted(name: str, adapter: Adapter, counted: Components, batch: int) -> float | None:
    formulas = FORMULAS if adapter.last.novelty.ndim == 1 else SCENE_FORMULAS
    return formulas[name].mebibytes(counted, batch=batch) if name in formulas else None


def _base(name: str) -> str:
    return name.partition("+")[0]


def _adapter(spec: Spec, name: str, model: nn.Module, workbench: ResourceProvider, settings: RunSettings) -> Adapter:
    kinds = {_base(name), name}
    own = {key.partition(".")[2]: value for key, value in spec.options if key.partition(".")[0] in kinds}
    adapter = build_method(name, model, own | {"seed": spec.seed} | settings.step)
    if not adapter.prepared:
        adapter.prepare(workbench.source(spec, settings.device))
    return adapter
