"""Turn records of batches into reports and notices, and hand them to exporters."""

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from driftproof.monitor.base import BatchReport, Exporter, Notice, NoticeKind

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from driftproof.alarm import Event
    from driftproof.record import Record

__all__ = ["Monitor"]

_MAX_LISTED = 100
"""Alarms and errors that a notice lists one by one; it counts them all."""


class Monitor:
    """Watches an adapter: call it with the record of each batch.

    An exporter that fails does not end the stream: `failures` counts how often each one raised, and `last_error` holds
    the latest error.

    Args:
        exporters: Where reports and notices go.
        clock: Returns the time in seconds since 1970.

    Attributes:
        num_batches: Number of the last batch.
        failures: How often an exporter failed, by its class name.
        last_error: The latest error of an exporter; None if there was none.

    Examples:
        >>> import torch, driftproof as dp
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
        >>> adapter, alarm = dp.tent(model), dp.Alarm(0.5)
        >>> with Monitor() as monitor:
        ...     logits, record = adapter.step(torch.rand(8, 3, 4, 4))
        ...     report = monitor(record, alarm(record.novelty), logits=logits)
        >>> report.images, report.health.state
        (8, 'healthy')
    """

    def __init__(self, *exporters: Exporter, clock: Callable[[], float] = time.time) -> None:
        self.exporters = exporters
        self.num_batches = 0
        self.failures: dict[str, int] = {}
        self.last_error: Exception | None = None
        self._clock = clock
        self._state = "healthy"
        self._skipped: str | None = None

    def __call__(
        self,
        record: "Record | None",
        events: "Sequence[Event]" = (),
        *,
        logits: "Tensor | None" = None,
        names: Sequence[str] | None = None,
        errors: Sequence[str] = (),
        seconds: float = math.nan,
    ) -> BatchReport:
        """Report a batch; returns the report.

        Args:
            record: The record of the batch; None if no image of it could be predicted.
            events: What an `Alarm` flagged in it.
            logits: Its logits, to report their entropy; None reports none.
            names: Names of the images, to name those that raised the alarm.
            errors: Why images have no prediction, one message each.
            seconds: Time of the step.
        """
        self.num_batches += 1
        now = self._clock()
        report = _make_report(self.num_batches, now, record, events, logits, len(errors), seconds)
        notices = self._find_notices(report, events, names, errors)
        self._export(report, notices)
        return report

    def notify(self, kind: NoticeKind, message: str, **details: Any) -> None:  # noqa: ANN401  # data for JSON
        """Pass on something that belongs to no batch, such as the start of a run."""
        self._export(None, [Notice(kind, message, self._clock(), self.num_batches, details)])

    def close(self) -> None:
        """Close the exporters."""
        for exporter in self.exporters:
            self._guarded(exporter, exporter.close)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _export(self, report: BatchReport | None, notices: Sequence[Notice]) -> None:
        for exporter in self.exporters:
            self._guarded(exporter, lambda exporter=exporter: exporter.export(report, notices))  # type: ignore[misc]

    def _guarded(self, exporter: Exporter, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # monitoring must not end what it monitors
            name = type(exporter).__name__
            self.failures[name] = self.failures.get(name, 0) + 1
            self.last_error = error

    def _find_notices(
        self, report: BatchReport, events: "Sequence[Event]", names: Sequence[str] | None, errors: Sequence[str]
    ) -> list[Notice]:
        found: list[tuple[NoticeKind, str, dict[str, Any]]] = []
        if errors:
            found.append(
                (
                    "error",
                    f"images without a prediction: {len(errors)}; {errors[0]}",
                    {"messages": list(errors[:_MAX_LISTED])},
                )
            )
        if events:
            listed = [_describe_event(event, names) for event in events[:_MAX_LISTED]]
            largest = max(event.novelty for event in events)
            found.append(
                (
                    "alarm",
                    f"novel images or regions: {len(events)}, with a novelty of up to {largest:.3g}",
                    {"count": len(events), "events": listed},
                )
            )
        if report.skipped is not None and report.skipped != self._skipped:  # once for a stretch of them
            found.append(("skipped", f"the batch changed nothing: {report.skipped}", {}))
        self._skipped = report.skipped
        found += [("guard", f"a guard acted: {action}", {"action": action}) for action in report.actions]
        if report.images and report.health.state != self._state:
            words = f": {report.health.reason}" if report.health.reason else ""
            details = {"state": report.health.state, "before": self._state}
            found.append(("health", f"adaptation is {report.health.state}{words}", details))
            self._state = report.health.state
        return [Notice(kind, message, report.time, report.batch, details) for kind, message, details in found]


def _make_report(
    batch: int,
    now: float,
    record: "Record | None",
    events: "Sequence[Event]",
    logits: "Tensor | None",
    errors: int,
    seconds: float,
) -> BatchReport:
    if record is None:
        return BatchReport(batch, now, errors=errors, seconds=seconds)
    novelty = record.novelty.flatten()
    novelty = novelty[novelty.isfinite()]
    loss = record.loss
    return BatchReport(
        batch,
        now,
        images=len(record.selected),
        selected=int(record.selected.sum()),
        kept=record.kept,
        quarantined=int(record.quarantined.sum()),
        errors=errors,
        alarms=len(events),
        novelty=float(novelty.mean()) if len(novelty) else math.nan,
        entropy=math.nan if logits is None else _mean_entropy(logits),
        loss=math.nan if loss is None else loss,
        stepped=record.stepped,
        skipped=record.skipped,
        actions=record.actions,
        health=record.health,
        seconds=seconds,
    )


def _mean_entropy(logits: "Tensor") -> float:
    """Mean entropy of the finite predictions over ln C."""
    logs = logits.detach().float().log_softmax(dim=1)
    entropy = -(logs.exp() * logs).sum(dim=1)
    entropy = entropy[entropy.isfinite()]
    return float(entropy.mean()) / math.log(logits.shape[1]) if len(entropy) and logits.shape[1] > 1 else math.nan


def _describe_event(event: "Event", names: Sequence[str] | None) -> dict[str, Any]:
    described: dict[str, Any] = {"sample": event.sample, "novelty": event.novelty}
    if names is not None:
        described["name"] = names[event.sample]
    if event.box is not None:
        described |= {"area": event.area, "box": list(event.box)}
    return described
