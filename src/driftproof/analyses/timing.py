"""Measure time and peak memory of steps.

Times of separate runs on a busy machine are not comparable. `time_steps` therefore interleaves all methods in one run:
disturbances affect all of them equally, so that the ratios of their times are meaningful.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from driftproof.errors import ConfigurationError

__all__ = ["Timing", "peak_memory", "synchronizer", "time_steps", "time_trials"]


@dataclass(frozen=True)
class Timing:
    """Time of a step in seconds, over all trials.

    Attributes:
        mean: The mean, which the paper reports.
        median: The median, which is robust to a few slow trials.
        p95: The 95th percentile, interpolated between trials.
    """

    mean: float
    median: float
    p95: float

    @classmethod
    def from_seconds(cls, seconds: list[float]) -> "Timing":
        """Summarize the times of the trials.

        Examples:
            >>> Timing.from_seconds([1.0, 2.0, 6.0])
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
    """Time several steps in alternation.

    Args:
        steps: What to time, by name; each is called once per trial, in this order.
        trials: Number of timed calls of each step.
        warm_up: Number of untimed calls of each step before that.
        synchronize: Waits until the device is idle, called before and after each step; see `synchronizer`. None if
            steps are synchronous.
        clock: Returns the time in seconds.

    Examples:
        >>> timings = time_steps({"short": lambda: sum(range(10)), "long": lambda: sum(range(10**5))}, trials=5)
        >>> timings["long"].median > timings["short"].median
        True
    """
    seconds = time_trials(dict(steps), trials=trials, warm_up=warm_up, synchronize=synchronize, clock=clock)
    return {name: Timing.from_seconds(times) for name, times in seconds.items()}


def time_trials(
    steps: dict[str, Callable[[], object]],
    *,
    trials: int,
    warm_up: int,
    synchronize: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    turns: bool = False,
) -> dict[str, list[float]]:
    """Return the seconds of every trial, of several steps in alternation.

    The median of the ratios of two steps within a trial says more than the ratio of their medians where the speed of
    the machine changes from second to second.

    Args:
        steps: As in `time_steps`, and so are the other arguments.
        trials: Number of timed calls of each step.
        warm_up: Number of untimed calls of each step before that.
        synchronize: Waits until the device is idle.
        clock: Returns the time in seconds.
        turns: Whether every second trial goes through the steps backwards, so that none is always after another.
    """
    if trials < 1 or warm_up < 0:
        raise ConfigurationError(
            f"Expected `trials` of at least 1 and `warm_up` of at least 0, but got {trials} and {warm_up}."
        )
    for _ in range(warm_up):
        for step in steps.values():
            step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for trial in range(trials):
        for name in reversed(steps) if turns and trial % 2 else steps:
            seconds[name].append(_time_once(steps[name], synchronize, clock))
    return seconds


def _time_once(
    step: Callable[[], object], synchronize: Callable[[], object] | None, clock: Callable[[], float]
) -> float:
    if synchronize is not None:
        synchronize()
    start = clock()
    step()
    if synchronize is not None:
        synchronize()
    return clock() - start


def synchronizer(device: torch.device) -> Callable[[], None] | None:
    """A function that waits until a device is idle; None for a synchronous device.

    Examples:
        >>> images = torch.zeros(2)
        >>> time_steps({"sum": images.sum}, trials=3, synchronize=synchronizer(images.device)).keys()
        dict_keys(['sum'])
    """
    if device.type == "cpu":
        return None
    return lambda: torch.accelerator.synchronize(device)


def peak_memory(run: Callable[[], object], device: torch.device) -> int | None:
    """Call `run` and measure the peak increase of allocated device memory, in bytes.

    Memory allocated before is not included: build the adapter inside `run` to include its copies of the network.

    Args:
        run: What to measure.
        device: The device it uses.

    Returns:
        Bytes; None on a device without peak statistics, such as a CPU.

    Examples:
        >>> images = torch.zeros(2)
        >>> peak_memory(images.sum, images.device) is None
        True
    """
    if device.type != "cuda":
        run()
        return None
    gc.collect()  # memory freed during the run would reduce the increase
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
