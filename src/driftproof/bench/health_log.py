"""Guards of a benchmark run; its health is written into its rows in place of a warning."""

import math
from collections.abc import Mapping
from dataclasses import asdict

from driftproof.bench.spec import Option
from driftproof.bench.store import Row
from driftproof.guards import Control, Guard
from driftproof.health import Health
from driftproof.methods.by_name import parse_method, resolve_option

__all__ = ["HealthLog", "benchmark_guards", "health_columns"]


class HealthLog(Guard):
    """Counts how often the state is not healthy when guards look; changes nothing and prints nothing."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the counts."""
        self._looks = self._unhealthy = 0

    def act(self, health: Health, control: Control) -> None:
        """Count a look."""
        self._looks += 1
        self._unhealthy += health.state != "healthy"

    def take_counts(self) -> Row:
        """Return the counts since the last call, by row key."""
        counts = {"health/looks": self._looks, "health/unhealthy": self._unhealthy}
        self.reset()
        return counts


def benchmark_guards(name: str, options: Mapping[str, Option]) -> tuple[Guard, ...]:
    """Return the guards of a benchmark run: those its options name, else the method's own, without the warning.

    So published methods run as published. `adapt` falls back and rolls back.

    Examples:
        >>> benchmark_guards("tent+crowd", {}), benchmark_guards("tent", {"guard": "pause"})
        ((), (Pause(),))
    """
    own = "fall_back+roll_back" if parse_method(name)[0] == "adapt" else "none"
    return tuple(resolve_option("guard", options.get("guard") or own))


def health_columns(health: Health) -> Row:
    """Return state and indicators by row key; one that was not measured is None.

    Examples:
        >>> health_columns(Health(disagreement=0.5))["health"], health_columns(Health())["health/distance"]
        ('drifting', None)
    """
    indicators = {f"health/{name}": None if math.isnan(value) else value for name, value in asdict(health).items()}
    return {"health": health.state, **indicators}
