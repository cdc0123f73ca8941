"""Metrics for Prometheus."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from driftproof.monitor.base import METRICS, BatchReport, Exporter, Notice
from driftproof.optional import require

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Prometheus"]


class Prometheus(Exporter):
    """Keeps the `METRICS` where Prometheus can read them.

    Args:
        port: Serve them at `http://host:port/metrics`; 0 chooses a free port, None serves nothing: use `registry`.
        host: Address to serve at; the machine's own by default.
        registry: Where the metrics are kept; None makes a new one.

    Attributes:
        registry: Where the metrics are kept.
        port: The port that is served; None if none is.

    Examples:
        >>> from driftproof.monitor import Monitor
        >>> exporter = Prometheus(port=None)
        >>> with Monitor(exporter) as monitor:
        ...     _ = monitor(None, errors=["cannot be read"])
        >>> exporter.registry.get_sample_value("driftproof_errors_total")
        1.0
    """

    def __init__(
        self, port: int | None = None, *, host: str = "127.0.0.1", registry: "CollectorRegistry | None" = None
    ) -> None:
        client = require("prometheus_client", "Exporting metrics to Prometheus", "'driftproof[monitor]'")
        self.registry = client.CollectorRegistry() if registry is None else registry
        kinds = {"counter": client.Counter, "gauge": client.Gauge, "histogram": client.Histogram}
        self._metrics = {
            name: kinds[metric.kind](
                name, metric.help, () if metric.label is None else (metric.label,), registry=self.registry
            )
            for name, metric in METRICS.items()
        }
        self._notices = client.Counter("driftproof_notices", "Notices, by kind.", ("kind",), registry=self.registry)
        self.port: int | None = None
        self._server: Any = None
        if port is not None:
            self._server, self._thread = client.start_http_server(port, addr=host, registry=self.registry)
            self.port = self._server.server_port

    def export(self, report: BatchReport | None, notices: Sequence[Notice]) -> None:
        """Update the metrics."""
        for notice in notices:
            self._notices.labels(notice.kind).inc()
        if report is None:
            return
        for name, metric in METRICS.items():
            value = metric.read(report)
            values = value if isinstance(value, Mapping) else {None: value}
            for label, number in values.items():
                if math.isfinite(number):
                    target = self._metrics[name] if label is None else self._metrics[name].labels(label)
                    _UPDATES[metric.kind](target, number)

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None


_UPDATES: dict[str, Any] = {
    "counter": lambda target, number: target.inc(number),
    "gauge": lambda target, number: target.set(number),
    "histogram": lambda target, number: target.observe(number),
}
