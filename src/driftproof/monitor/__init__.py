"""Watch an adapter in production: logs, metrics, notices and a live view.

A `Monitor` gets the record of each batch and hands a `BatchReport` and its `Notice`s to `Exporter`s.
"""

from driftproof.monitor.base import METRICS, BatchReport, Exporter, Metric, Notice, NoticeKind
from driftproof.monitor.json_log import JsonLog, read_log
from driftproof.monitor.monitor import Monitor

__all__ = ["METRICS", "BatchReport", "Exporter", "JsonLog", "Metric", "Monitor", "Notice", "NoticeKind", "read_log"]
