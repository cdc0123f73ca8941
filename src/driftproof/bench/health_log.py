"""Health of a run, written into its rows in place of a warning."""

import math
from dataclasses import asdict

from driftproof.adapter import Adapter
from driftproof.bench.store import Row
from driftproof.guards import Control, Guard
from driftproof.health import Health

__all__ = ["HealthLog", "find_health_log", "health_columns"]


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


def find_health_log(adapter: Adapter) -> HealthLog | None:
    """Return the log among an adapter's guards; None if a method of the user's takes no guards."""
    return next((guard for guard in adapter.method.guards if isinstance(guard, HealthLog)), None)


def health_columns(health: Health) -> Row:
    """Return state and indicators by row key; one that was not measured is None.

    Examples:
        >>> health_columns(Health(disagreement=0.5))["health"], health_columns(Health())["health/distance"]
        ('drifting', None)
    """
    indicators = {f"health/{name}": None if math.isnan(value) else value for name, value in asdict(health).items()}
    return {"health": health.state, **indicators}
