"""The panels of one frame, and its counts of pixels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from driftproof.analyses.scenes import FrameResult
from driftproof.data.scenes import UNKNOWN, SceneClass
from driftproof.optional import require
from driftproof.report.numbers import format_number
from driftproof.report.scenes.colorize import colorize

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ALARM_COLOR", "PHOTOS", "count_pixels", "describe_counts", "make_panels"]

ALARM_COLOR = (255, 214, 0)
PHOTOS = ("Input", "Alarms")
"""Panels that show the frame itself; the others are maps of classes."""


def make_panels(frame: FrameResult, palette: Sequence[SceneClass]) -> "dict[str, Image]":
    """Return the panels of a frame by title; those without data are left out.

    Args:
        frame: The frame with its predictions.
        palette: The model's classes.
    """
    make_image = require("PIL.Image", "Drawing scenes").fromarray
    pixels, predicted = frame.image.permute(1, 2, 0).contiguous().numpy(), colorize(frame.predicted, palette)
    panels = {"Input": make_image(pixels), "Prediction": make_image(predicted)}
    if frame.rejected is not None:
        panels["Rejected in black"] = make_image(predicted * ~frame.rejected.numpy()[..., None])
    panels["Alarms"] = alarms = make_image(pixels)
    draw = require("PIL.ImageDraw", "Drawing scenes").Draw(alarms)
    line = max(2, round(alarms.height / 120))
    for top, left, bottom, right in (event.box for event in frame.events if event.box is not None):
        for margin, color in ((line + 1, (0, 0, 0)), (line, ALARM_COLOR)):
            box = (left - margin, top - margin, right - 1 + margin, bottom - 1 + margin)
            draw.rectangle(box, outline=color, width=margin)
    if frame.labels is not None:
        panels["Ground truth"] = make_image(colorize(frame.labels, palette))
    return panels


def count_pixels(frame: FrameResult) -> Counter[str]:
    """Count correct, wrong and unknown pixels, how many of each are rejected, and alarms."""
    rejected = frame.predicted < 0 if frame.rejected is None else frame.rejected
    groups = {"": rejected | True}
    if frame.labels is not None:
        known, correct = frame.labels < UNKNOWN, frame.labels == frame.predicted
        groups |= {"correct": known & correct, "wrong": known & ~correct, "unknown": frame.labels == UNKNOWN}
    counts = Counter({name: int(group.sum()) for name, group in groups.items()})
    counts.update({f"rejected {name}".strip(): int((group & rejected).sum()) for name, group in groups.items()})
    return counts + Counter(alarms=len(frame.events))


def describe_counts(counts: Mapping[str, int], *, has_rejected: bool) -> str:
    """Describe counts in one sentence; shares are in percent.

    Args:
        counts: As `count_pixels` returns them, of one frame or of several.
        has_rejected: Whether the method learns, so that rejected pixels mean something.

    Examples:
        >>> describe_counts({"": 100, "rejected": 30, "alarms": 1}, has_rejected=True)
        '30.0 % of the pixels rejected; 1 alarm'
    """
    get = Counter(counts)
    parts = (
        [f"{_share(get['correct'], known)} of the known pixels correct"]
        if (known := get["correct"] + get["wrong"])
        else []
    )
    if has_rejected:
        groups = [group for group in ("correct", "wrong", "unknown") if get[group]]
        shares = ", ".join(f"{_share(get[f'rejected {group}'], get[group])} of the {group}" for group in groups)
        parts.append(
            f"{_share(get['rejected'], get[''])} of the pixels rejected" + (f" ({shares} ones)" if shares else "")
        )
    return "; ".join([*parts, f"{get['alarms']} alarm{'s' * (get['alarms'] != 1)}"])


def _share(part: int, whole: int) -> str:
    return f"{format_number(100 * part / whole)} %"
