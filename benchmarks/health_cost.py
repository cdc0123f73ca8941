"""What health costs: steps with it, and the same steps without."""

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

import driftproof as dp
from driftproof.analyses import synchronizer, time_steps

WARM_UP, STEPS = 51, 100
"""Untimed and timed steps: extra passes of the frozen network come with every hundredth batch, more often at first."""
LIMIT = 1.03


def measure_health_cost(
    make_network: Callable[[], nn.Module],
    images: Tensor,
    *,
    select: bool,
    clock: Callable[[], float] = time.perf_counter,
    **settings: Any,  # noqa: ANN401  # passed on
) -> float:
    """Return the mean time of a step with the default guard over that of a step that keeps no health.

    Args:
        make_network: Builds the network.
        images: The batch that every step gets; the two take turns.
        select: Whether to select by confidence difference.
        clock: Returns the time in seconds.
        **settings: Of the adapters.
    """
    chosen = dp.ConfidenceDifference() if select else None
    watched = dp.tent(make_network(), select=chosen, **settings)
    unwatched = dp.tent(make_network(), select=chosen, guard=(), **settings)
    unwatched.state.health.update = _do_nothing  # type: ignore[method-assign]
    steps = {"with": partial(watched, images), "without": partial(unwatched, images)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Adaptation is")  # images are random
        wait = synchronizer(images.device)
        timings = time_steps(steps, trials=STEPS, warm_up=WARM_UP, synchronize=wait, clock=clock)
    return timings["with"].mean / timings["without"].mean


def _do_nothing(step: object, selected: Tensor) -> None:
    pass
