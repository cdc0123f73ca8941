"""Time and memory of a step of several adapters, measured in turns."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from driftproof.adapter import Adapter
from driftproof.analyses.memory import FORMULAS, SCENE_FORMULAS, MemoryCounts, count_memory
from driftproof.analyses.timing import peak_memory, synchronizer, time_steps

__all__ = ["measure_costs"]

_GRAPH_WARMUP = 8
"""Batches after which every engine has reached its final mode; all run the first batches of a shape eagerly."""


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
        adapter, in bytes, and `peak_mebibytes`, None if the device does not keep count; `milliseconds`, the mean;
        `median_milliseconds`.
    """
    steps = {name: partial(adapter, images) for name, adapter in adapters.items()}
    peaks = {name: _measure_peak(step, images.device) for name, step in steps.items()}
    timings = time_steps(steps, trials=trials, warm_up=warm_up, synchronize=synchronizer(images.device))
    counted = count_memory(model, images.shape[1:])
    return {
        name: {
            "memory": _formula_memory(name, adapters[name], counted, len(images)),
            "peak": peaks[name],
            "peak_mebibytes": None if (peak := peaks[name]) is None else peak / 2**20,
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
