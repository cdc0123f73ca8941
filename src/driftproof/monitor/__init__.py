"""Watch an adapter in production: logs, metrics, notices and a live view.

A `Monitor` gets the record of each batch and hands a `BatchReport` and its `Notice`s to `Exporter`s.
"""

from driftproof.monitor.base import METRICS, BatchReport, Exporter, Metric, Notice, NoticeKind
from driftproof.monitor.curves import draw_reports
from driftproof.monitor.json_log import JsonLog, read_log
from driftproof.monitor.live_view import LiveView
from driftproof.monitor.monitor import Monitor
from driftproof.monitor.opentelemetry import OpenTelemetry
from driftproof.monitor.prometheus import Prometheus
from driftproof.monitor.tensorboard import TensorBoard
from driftproof.monitor.webhook import Webhook

__all__ = [
    "METRICS",
    "BatchReport",
    "Exporter",
    "JsonLog",
    "LiveView",
    "Metric",
    "Monitor",
    "Notice",
    "NoticeKind",
    "OpenTelemetry",
    "Prometheus",
    "TensorBoard",
    "Webhook",
    "draw_reports",
    "read_log",
]
