"""Metrics of the server itself, beside those of the monitor."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["ServerMetrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ServerMetrics:
    """What a server counts.

    Args:
        registry: Where the metrics are registered.

    Attributes:
        requests: Requests by path and status.
        seconds: Time of a request by path.
        errors: Errors by their code, see `driftproof.serve.errors`; also of single images.
        closed_connections: Connections that the server closed, by reason: full, idle.
        saves: States saved, by result: ok, failed.
        loads: States loaded, by result: ok, failed.
        saved_at: When a state was last saved or loaded, in seconds since 1970.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.requests = Counter(
            "driftproof_serve_requests", "Requests answered.", ("path", "status"), registry=registry
        )
        self.seconds = Histogram(
            "driftproof_serve_request_seconds", "Time of a request.", ("path",), buckets=_SECONDS, registry=registry
        )
        self.errors = Counter("driftproof_serve_errors", "Requests and images refused.", ("code",), registry=registry)
        self.closed_connections = Counter(
            "driftproof_serve_closed_connections", "Connections that the server closed.", ("reason",), registry=registry
        )
        self.saves = Counter("driftproof_serve_state_saves", "States saved.", ("result",), registry=registry)
        self.loads = Counter("driftproof_serve_state_loads", "States loaded.", ("result",), registry=registry)
        self.saved_at = Gauge(
            "driftproof_serve_state_timestamp_seconds", "When a state was last saved or loaded.", registry=registry
        )

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Register a gauge that is read whenever metrics are asked for."""
        Gauge(f"driftproof_serve_{name}", help_text, registry=self._registry).set_function(read)
