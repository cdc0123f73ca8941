"""Time and memory of steps, measured so that they can be compared.

Times of different runs on a busy or warming machine are hard to compare. Here all contestants take turns within one
run, step by step: whatever happens to the machine happens to all alike, and the ratios of their times mean something.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from driftproof.errors import ConfigurationError

__all__ = ["Timing", "peak_memory", "synchronizer", "time_steps"]


@dataclass(frozen=True)
class Timing:
    """How long a step took, in seconds, over all trials.

    Attributes:
        mean: The mean, which the paper reports.
        median: The median, which a few interrupted trials do not move.
        p95: The time that 95 % of the trials stayed within, interpolated between trials.
    """

    mean: float
    median: float
    p95: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Timing":
        """The summary of the trials.

        Examples:
            >>> Timing.of([1.0, 2.0, 6.0])
            Timing(mean=3.0, median=2.0, p95=5.6)
        """
        return cls(statistics.fmean(seconds), statistics.median(seconds), float(np.percentile(seconds, 95)))


def time_steps(
    steps: Mapping[str, Callable[[], object]],
    *,
    trials: int = 5000,
    warm_up: int = 50,
    synchronize: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time several steps that take turns.

    Args:
        steps: What to time, by name; each is called once per trial, in this order.
        trials: How often each is timed.
        warm_up: How often each is called before that.
        synchronize: Waits until the device is idle, called before and after each step; see `synchronizer`. None where
            a step's work is done when it returns.
        clock: Tells the time in seconds.

    Examples:
        >>> timings = time_steps({"short": lambda: sum(range(10)), "long": lambda: sum(range(10**5))}, trials=5)
        >>> timings["long"].median > timings["short"].median
        True
    """
    if trials < 1 or warm_up < 0:
        raise ConfigurationError(
            f"Expected `trials` of at least 1 and `warm_up` of at least 0, but got {trials} and {warm_up}."
        )
    for _ in range(warm_up):
        for step in steps.values():
            step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(trials):
        for name, step in steps.items():
            seconds[name].append(_time_once(step, synchronize, clock))
    return {name: Timing.of(taken) for name, taken in seconds.items()}


def _time_once(step: Callable[[], object], synchronize: Callable[[], object] | None, clock: Callable[[], float]) -> float:
    if synchronize is not None:
        synchronize()
    start = clock()
    step()
    if synchronize is not None:
        synchronize()
    return clock() - start


def synchronizer(device: torch.device) -> Callable[[], None] | None:
    """What waits until a device has done its work; None for one whose work is done when a call returns.

    Examples:
        >>> images = torch.zeros(2)
        >>> time_steps({"sum": images.sum}, trials=3, synchronize=synchronizer(images.device)).keys()
        dict_keys(['sum'])
    """
    if device.type == "cpu":
        return None
    return lambda: torch.accelerator.synchronize(device)


def peak_memory(run: Callable[[], object], device: torch.device) -> int | None:
    """Call `run` and measure by how many bytes the memory in use on the device rose meanwhile, at its highest.

    What was in use before is not part of it: build the adapter inside `run` to count its copies of the network too.

    Args:
        run: What to measure.
        device: Where it works.

    Returns:
        Bytes; None on a device that keeps no count of its peak, such as a CPU.

    Examples:
        >>> images = torch.zeros(2)
        >>> peak_memory(images.sum, images.device) is None
        True
    """
    if device.type != "cuda":
        run()
        return None
    gc.collect()  # what is freed meanwhile would be taken off the rise
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
