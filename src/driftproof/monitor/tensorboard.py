"""Curves for TensorBoard."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from driftproof.monitor.base import METRICS, BatchReport, Exporter, Notice
from driftproof.optional import require

__all__ = ["TensorBoard"]


class TensorBoard(Exporter):
    """Writes gauges and times as curves over batches, and notices as text.

    Args:
        folder: Folder of the event files; `tensorboard --logdir` shows it.
        every: Write every so many batches only.
    """

    def __init__(self, folder: Path, *, every: int = 1) -> None:
        require("tensorboard", "Writing for TensorBoard", "'driftproof[monitor]'")
        writer = require("torch.utils.tensorboard", "Writing for TensorBoard", "'driftproof[monitor]'")
        self._writer = writer.SummaryWriter(str(folder))
        self._every = every

    def export(self, report: BatchReport | None, notices: Sequence[Notice]) -> None:
        """Write a report and its notices."""
        for notice in notices:
            self._writer.add_text(notice.kind, notice.message, notice.batch, walltime=notice.time)
        if report is None or report.batch % self._every:
            return
        for name, metric in METRICS.items():
            value = metric.read(report)
            values = (
                {f"/{label}": number for label, number in value.items()} if isinstance(value, Mapping) else {"": value}
            )
            for suffix, number in values.items():
                if metric.kind != "counter" and math.isfinite(number):
                    title = name.removeprefix("driftproof_") + suffix
                    self._writer.add_scalar(title, number, report.batch, walltime=report.time)

    def close(self) -> None:
        """Write what waits."""
        self._writer.close()
