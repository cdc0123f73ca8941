"""What monitoring passes on: one report per batch, the notices that came with it, and the metrics of a report."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from driftproof.health import Health

__all__ = ["METRICS", "BatchReport", "Exporter", "Metric", "Notice", "NoticeKind"]

NoticeKind = Literal["alarm", "guard", "health", "skipped", "error", "run"]
"""Kinds of notices.

- alarm: images were more novel than the alarm's threshold;
- guard: a guard acted;
- health: the state of health changed;
- skipped: batches change nothing from here on, for a new reason;
- error: images have no prediction;
- run: a run began, went on, stopped or ended.
"""


@dataclass(frozen=True)
class Notice:
    """Something that happened, in words and as data.

    Attributes:
        kind: What kind of thing, see `NoticeKind`.
        message: What happened, in a sentence.
        time: When, in seconds since 1970.
        batch: Number of the batch, from 1; 0 before the first.
        details: Numbers and names that belong to it, as data for JSON.
    """

    kind: NoticeKind
    message: str
    time: float
    batch: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the notice as data for JSON."""
        return {"type": "notice"} | asdict(self)


@dataclass(frozen=True)
class BatchReport:
    """The numbers of one batch, read from the device once for all exporters.

    Attributes:
        batch: Number of the batch, from 1.
        time: When it was done, in seconds since 1970.
        images: How many images were predicted.
        selected: How many samples (pixels, in segmentation) the step learned from.
        kept: Share of samples the step learned from.
        quarantined: How many images were kept out.
        errors: How many images have no prediction because they could not be read or the model failed on them.
        alarms: How many images, or regions of images, raised the alarm.
        novelty: Mean novelty over samples with a finite one; NaN if there are none.
        entropy: Mean entropy of the predictions over ln C; NaN if not given.
        loss: Loss of the step; NaN where nothing learns.
        stepped: Whether the optimizer took a step.
        skipped: Why the batch changed nothing, or None.
        actions: What guards did.
        health: How adaptation goes.
        seconds: Time of the step; NaN if not measured.
    """

    batch: int
    time: float
    images: int = 0
    selected: int = 0
    kept: float = math.nan
    quarantined: int = 0
    errors: int = 0
    alarms: int = 0
    novelty: float = math.nan
    entropy: float = math.nan
    loss: float = math.nan
    stepped: bool = False
    skipped: str | None = None
    actions: tuple[str, ...] = ()
    health: Health = field(default_factory=Health)
    seconds: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON; numbers that are not finite become None."""
        values = asdict(self)
        health = {"state": self.health.state, "reason": self.health.reason} | values.pop("health")
        return {"type": "batch"} | _replace_nan(values) | {"health": _replace_nan(health)}


class Exporter:
    """Sends reports and notices somewhere.

    A `Monitor` calls `export` after each batch, in one thread. It must return soon; what waits for a network belongs in
    a thread of its own. If it raises an `Exception`, the monitor counts it and goes on.

    Examples:
        >>> class PrintAlarms(Exporter):
        ...     def export(self, report, notices):
        ...         for notice in notices:
        ...             if notice.kind == "alarm":
        ...                 print(notice.message)
    """

    def export(self, report: BatchReport | None, notices: Sequence[Notice]) -> None:
        """Send a batch and its notices.

        Args:
            report: The batch; None for notices that belong to none.
            notices: What happened in it, in order.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Send what is left and let go of files, threads and connections."""


@dataclass(frozen=True)
class Metric:
    """A number of a report that metrics systems keep.

    Attributes:
        kind: "counter": values add up; "gauge": the last value counts; "histogram": values are distributed.
        help: What it is.
        read: Its value in a report; NaN where it was not measured, which is not sent.
        label: Name of the label by which values are told apart; None if there is one value only.
    """

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    read: Callable[[BatchReport], float | Mapping[str, float]]
    label: str | None = None


_STATES = {"healthy": 0, "drifting": 1, "collapsed": 2}

METRICS: dict[str, Metric] = {
    "driftproof_batches": Metric("counter", "Batches predicted.", lambda report: float(report.images > 0)),
    "driftproof_images": Metric("counter", "Images predicted.", lambda report: report.images),
    "driftproof_selected": Metric("counter", "Samples that steps learned from.", lambda report: report.selected),
    "driftproof_steps": Metric("counter", "Optimizer steps taken.", lambda report: float(report.stepped)),
    "driftproof_skipped": Metric(
        "counter", "Batches that changed nothing.", lambda report: float(report.skipped is not None)
    ),
    "driftproof_quarantined": Metric("counter", "Images kept out.", lambda report: report.quarantined),
    "driftproof_errors": Metric("counter", "Images without a prediction.", lambda report: report.errors),
    "driftproof_alarms": Metric("counter", "Images that raised the alarm.", lambda report: report.alarms),
    "driftproof_guard_actions": Metric(
        "counter",
        "Batches on which a guard acted.",
        lambda report: {action.replace(" ", "_"): 1.0 for action in report.actions},
        label="action",
    ),
    "driftproof_kept_ratio": Metric(
        "gauge", "Share of samples the last step learned from.", lambda report: report.kept
    ),
    "driftproof_novelty": Metric("gauge", "Mean novelty of the last batch.", lambda report: report.novelty),
    "driftproof_entropy": Metric(
        "gauge", "Mean entropy of the last batch's predictions over ln C.", lambda report: report.entropy
    ),
    "driftproof_loss": Metric("gauge", "Loss of the last step.", lambda report: report.loss),
    "driftproof_health_state": Metric(
        "gauge", "0 healthy, 1 drifting, 2 collapsed.", lambda report: _STATES[report.health.state]
    ),
    "driftproof_health": Metric(
        "gauge", "Indicators of health, see Health.", lambda report: vars(report.health), label="indicator"
    ),
    "driftproof_step_seconds": Metric("histogram", "Time of a step.", lambda report: report.seconds),
}
"""The metrics by name. Prometheus adds `_total` to the names of counters."""


def _replace_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
