"""Count correct, rejected and unknown pixels."""

from dataclasses import astuple, dataclass

from driftproof.analyses.scenes import FrameResult
from driftproof.data.scenes import UNKNOWN
from driftproof.report.numbers import format_number

__all__ = ["PixelStats", "count_pixels"]


@dataclass(frozen=True)
class PixelStats:
    """Pixel counts, which can be added over frames.

    Attributes:
        pixels: All pixels.
        rejected: Pixels that the step did not learn from.
        correct: Pixels of a known class with a correct prediction.
        wrong: Pixels of a known class with a wrong prediction.
        unknown: Pixels of no trained class.
        rejected_correct: Rejected pixels among the correct ones.
        rejected_wrong: Rejected pixels among the wrong ones.
        rejected_unknown: Rejected pixels among the unknown ones.
        alarms: Number of alarm regions.

    Examples:
        >>> PixelStats(pixels=100, alarms=1).sentences(has_rejected=False)
        ['1 alarm']
    """

    pixels: int = 0
    rejected: int = 0
    correct: int = 0
    wrong: int = 0
    unknown: int = 0
    rejected_correct: int = 0
    rejected_wrong: int = 0
    rejected_unknown: int = 0
    alarms: int = 0

    def __add__(self, other: "PixelStats") -> "PixelStats":
        return PixelStats(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    def sentences(self, *, has_rejected: bool = True) -> list[str]:
        """Describe the counts that are available.

        Args:
            has_rejected: Whether the method learns, so that rejected pixels mean something.
        """
        parts, known = list[str](), self.correct + self.wrong
        if known:
            parts.append(f"{_format_share(self.correct, known)} of the known pixels correct")
        if has_rejected:
            parts.append(f"{_format_share(self.rejected, self.pixels)} of the pixels rejected{self._rejection_rates()}")
        return [*parts, "1 alarm" if self.alarms == 1 else f"{self.alarms} alarms"]

    def _rejection_rates(self) -> str:
        groups = {
            "correct": (self.rejected_correct, self.correct),
            "wrong": (self.rejected_wrong, self.wrong),
            "unknown": (self.rejected_unknown, self.unknown),
        }
        shares = [f"{_format_share(part, whole)} of the {name}" for name, (part, whole) in groups.items() if whole]
        return f" ({', '.join(shares)} ones)" if shares and self.rejected else ""


def count_pixels(frame: FrameResult) -> PixelStats:
    """Count the pixels of one frame."""
    rejected = frame.predicted < 0 if frame.rejected is None else frame.rejected
    counts = {"pixels": rejected.numel(), "rejected": int(rejected.sum()), "alarms": len(frame.events)}
    if frame.labels is not None:
        known, correct = frame.labels < UNKNOWN, frame.labels == frame.predicted
        groups = {"correct": known & correct, "wrong": known & ~correct, "unknown": frame.labels == UNKNOWN}
        counts |= {name: int(group.sum()) for name, group in groups.items()}
        counts |= {f"rejected_{name}": int((group & rejected).sum()) for name, group in groups.items()}
    return PixelStats(**counts)


def _format_share(part: int, whole: int) -> str:
    return f"{format_number(100 * part / whole)}\N{NO-BREAK SPACE}%"
