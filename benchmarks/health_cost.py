"""What health costs: steps with it, and the same steps without."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

import driftproof as dp
from driftproof.analyses import synchronizer, time_steps

ROW = 100
"""Steps in a row: extra passes of the frozen network come with every hundredth batch."""
LIMIT = 1.03


def measure_health_cost(
    make_network: Callable[[], nn.Module],
    images: Tensor,
    *,
    trials: int,
    select: bool,
    **settings: Any,  # noqa: ANN401  # passed on
) -> float:
    """Return the time of steps with the default guard over that of steps that keep no health.

    Args:
        make_network: Builds the network.
        images: The batch that every step gets.
        trials: How often each of the two takes `ROW` steps; the medians are compared.
        select: Whether to select by confidence difference.
        **settings: Of the adapters.
    """
    chosen = dp.ConfidenceDifference() if select else None
    watched = dp.tent(make_network(), select=chosen, **settings)
    unwatched = dp.tent(make_network(), select=chosen, guard=(), **settings)
    unwatched.state.health.update = _do_nothing  # type: ignore[method-assign]
    runs = {name: partial(_run, step, images) for name, step in (("with", watched), ("without", unwatched))}
    timings = time_steps(runs, trials=trials, warm_up=2, synchronize=synchronizer(images.device))
    return timings["with"].median / timings["without"].median


def _run(adapter: dp.Adapter, images: Tensor) -> None:
    for _ in range(ROW):
        adapter(images)


def _do_nothing(step: object, selected: Tensor) -> None:
    pass
