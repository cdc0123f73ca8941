"""Pixels counted: how many were right, how many were left out, and whether they deserved it."""

from dataclasses import astuple, dataclass

from driftproof.analyses.scenes import FrameResult
from driftproof.data.scenes import UNKNOWN
from driftproof.report.numbers import format_number

__all__ = ["PixelStats", "count_pixels"]


@dataclass(frozen=True)
class PixelStats:
    """Counts of pixels, which add up over frames.

    Attributes:
        pixels: All of them.
        rejected: Those that the step did not learn from.
        right: Those of a known class that was predicted.
        wrong: Those of a known class for which another was predicted.
        unknown: Those of no trained class.
        rejected_right: How many of the right ones were rejected.
        rejected_wrong: How many of the wrong ones were.
        rejected_unknown: How many of the unknown ones were.
        alarms: Regions that alarmed; not pixels.

    Examples:
        >>> PixelStats(pixels=100, alarms=1).sentences(rejecting=False)
        ['1 alarm']
    """

    pixels: int = 0
    rejected: int = 0
    right: int = 0
    wrong: int = 0
    unknown: int = 0
    rejected_right: int = 0
    rejected_wrong: int = 0
    rejected_unknown: int = 0
    alarms: int = 0

    def __add__(self, other: "PixelStats") -> "PixelStats":
        return PixelStats(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    def sentences(self, *, rejecting: bool = True) -> list[str]:
        """The counts in words, as far as there is something to say.

        Args:
            rejecting: Whether the method chooses what it learns from, or learns at all.
        """
        said, known = list[str](), self.right + self.wrong
        if known:
            said.append(f"{_format_share(self.right, known)} of the known pixels right")
        if rejecting:
            said.append(f"{_format_share(self.rejected, self.pixels)} of the pixels rejected{self._whether_deserved()}")
        return [*said, "1 alarm" if self.alarms == 1 else f"{self.alarms} alarms"]

    def _whether_deserved(self) -> str:
        groups = {
            "right": (self.rejected_right, self.right),
            "wrong": (self.rejected_wrong, self.wrong),
            "unknown": (self.rejected_unknown, self.unknown),
        }
        shares = [f"{_format_share(part, whole)} of the {name}" for name, (part, whole) in groups.items() if whole]
        return f" ({', '.join(shares)} ones)" if shares and self.rejected else ""


def count_pixels(view: FrameResult) -> PixelStats:
    """Count the pixels of one frame."""
    rejected = view.predicted < 0 if view.rejected is None else view.rejected
    counts = {"pixels": rejected.numel(), "rejected": int(rejected.sum()), "alarms": len(view.events)}
    if view.labels is not None:
        known, right = view.labels < UNKNOWN, view.labels == view.predicted
        groups = {"right": known & right, "wrong": known & ~right, "unknown": view.labels == UNKNOWN}
        counts |= {name: int(group.sum()) for name, group in groups.items()}
        counts |= {f"rejected_{name}": int((group & rejected).sum()) for name, group in groups.items()}
    return PixelStats(**counts)


def _format_share(part: int, whole: int) -> str:
    return f"{format_number(100 * part / whole)}\N{NO-BREAK SPACE}%"
