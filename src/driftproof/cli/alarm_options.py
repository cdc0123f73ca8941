"""The options `--alarm` and `--alarm-rate`, and the alarm they make."""

from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.errors import ConfigurationError

if TYPE_CHECKING:
    from driftproof.adapter import Adapter
    from driftproof.alarm import Alarm

__all__ = ["AlarmRate", "AlarmThreshold", "make_alarm", "warn_about_rate"]

AlarmThreshold = Annotated[
    float | None, typer.Option("--alarm", help="Flag images with a novelty above this threshold.")
]
AlarmRate = Annotated[
    float | None,
    typer.Option(
        "--alarm-rate",
        help="Flag about this share of the images of known classes, such as 0.05; the stream has to begin with images "
        "of known classes.",
    ),
]


def make_alarm(threshold: float | None, rate: float | None) -> "Alarm | None":
    """Return the alarm with a threshold or with a rate; None if neither is given."""
    if threshold is not None and rate is not None:
        raise ConfigurationError("Expected `--alarm` or `--alarm-rate`, but got both. A rate chooses the threshold.")
    if rate is not None and not 0 < rate < 1:
        raise ConfigurationError(
            f"Expected `--alarm-rate` to be above 0 and below 1, but got {rate:g}. Pass 0.05 to flag about 5% of the "
            "images of known classes."
        )
    from driftproof.alarm import Alarm

    if rate is not None:
        return Alarm.from_false_alarm_rate(rate)
    return None if threshold is None else Alarm(threshold)


def warn_about_rate(adapter: "Adapter", alarm: "Alarm | None") -> None:
    """Say so if the alarm's rate will not hold, since the adapter learns its novelty score in the stream."""
    from driftproof.scores.detected import Detected

    if alarm is not None and alarm.rate is not None and isinstance(adapter.method.novelty, Detected):
        typer.echo(
            "warning: `--alarm-rate` does not hold with this method, which learns its novelty score in the stream: far "
            "more or fewer images may be flagged. Use `--method adapt`, or `--alarm` with a threshold.",
            err=True,
        )
