"""Metrics for OpenTelemetry."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from driftproof.monitor.base import METRICS, BatchReport, Exporter, Notice
from driftproof.optional import require

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

__all__ = ["OpenTelemetry"]


class OpenTelemetry(Exporter):
    """Records the `METRICS` with OpenTelemetry.

    Where they go is configured as for any other program: by the provider, or by running it under
    `opentelemetry-instrument`. Names have a dot in place of the first underscore: `driftproof.kept_ratio`.

    Args:
        provider: Makes the instruments; None is the process's own.

    Examples:
        >>> from driftproof.monitor import Monitor
        >>> with Monitor(OpenTelemetry()) as monitor:
        ...     _ = monitor(None, errors=["cannot be read"])
    """

    def __init__(self, provider: "MeterProvider | None" = None) -> None:
        metrics = require("opentelemetry.metrics", "Exporting to OpenTelemetry", "'driftproof[monitor]'")
        self._provider = provider
        meter = (provider or metrics.get_meter_provider()).get_meter("driftproof")
        makers = {"counter": meter.create_counter, "gauge": meter.create_gauge, "histogram": meter.create_histogram}
        self._instruments = {
            name: makers[metric.kind](
                name.replace("_", ".", 1), description=metric.help, unit="s" if name.endswith("_seconds") else "1"
            )
            for name, metric in METRICS.items()
        }
        self._notices = meter.create_counter("driftproof.notices", description="Notices, by kind.", unit="1")

    def export(self, report: BatchReport | None, notices: Sequence[Notice]) -> None:
        """Record the metrics."""
        for notice in notices:
            self._notices.add(1, {"kind": notice.kind})
        if report is None:
            return
        for name, metric in METRICS.items():
            value = metric.read(report)
            values: Mapping[str | None, float] = value if isinstance(value, Mapping) else {None: value}  # type: ignore[assignment]
            for label, number in values.items():
                if math.isfinite(number):
                    attributes = {} if label is None else {str(metric.label): label}
                    _RECORDERS[metric.kind](self._instruments[name], number, attributes)

    def close(self) -> None:
        """Send what waits, if the provider can."""
        flush = getattr(self._provider, "force_flush", None)
        if flush is not None:
            flush()


_RECORDERS: dict[str, Any] = {
    "counter": lambda instrument, number, attributes: instrument.add(number, attributes),
    "gauge": lambda instrument, number, attributes: instrument.set(number, attributes),
    "histogram": lambda instrument, number, attributes: instrument.record(number, attributes),
}
