"""Whether adaptation goes well, judged without labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Health", "HealthState"]

HealthState = Literal["healthy", "drifting", "collapsed"]

_COLLAPSED = {"ratio": 0.8, "with disagreement": 0.4, "disagreement": 0.55}
_DRIFTING = {"ratio": 0.9, "with disagreement": 0.35, "disagreement": 0.45}
_STATISTICS_GAP = 0.065
_FEW_CLASSES = 0.5


@dataclass(frozen=True)
class Health:
    """Moving averages that show when adaptation goes wrong; read from `adapter.last.health`.

    The frozen network is the reference, on the same batches and with the same normalization statistics. So shifts of
    the classes in the stream cancel out. An indicator that was not measured yet is NaN.

    Attributes:
        mean_entropy: Entropy of the mean prediction over ln C, H(ȳ) / ln C. It falls when a network comes to predict
            few classes.
        mean_entropy_ratio: The same, relative to the frozen network's.
        disagreement: Share of predictions that differ from the frozen network's.
        distance: How far the parameters moved, ‖θ − θ_o‖ / ‖θ_o‖.
        kept: Share of samples learned from.
        statistics_gap: Mean entropy of the frozen network's predictions less that with the statistics of training, over
            ln C. It is large where batch statistics do not fit the stream: batches of one class, or of few images. In
            batches of fewer than 32 it counts half. In larger ones it counts as zero unless the mean prediction with
            the statistics of training has less than 0.67 of the entropy and is not what it was before: unknown images
            widen the gap as well, and a shift may drive a network into the same few classes.
    """

    mean_entropy: float = math.nan
    mean_entropy_ratio: float = math.nan
    disagreement: float = math.nan
    distance: float = math.nan
    kept: float = math.nan
    statistics_gap: float = math.nan

    @property
    def state(self) -> HealthState:
        """The worst that the indicators say.

        - collapsed: the disagreement is above 0.55, or it is above 0.4 and the ratio below 0.8, or the gap of the
          statistics is above 0.065.
        - drifting: the disagreement is above 0.45, or it is above 0.35 and the ratio below 0.9. Where nothing is
          compared with the frozen network: the entropy of the mean prediction is below half of ln C.
        """
        return self._judge()[0]

    @property
    def reason(self) -> str | None:
        """Why the state is not healthy, in words; None if it is."""
        return self._judge()[1]

    def _judge(self) -> tuple[HealthState, str | None]:
        ratio, disagreement = self.mean_entropy_ratio, self.disagreement
        if self.blames_statistics:
            return "collapsed", (
                "the frozen network is much surer with the statistics of its training than with those of the stream, "
                "as happens when batches hold few classes or few images"
            )
        differ = f"{disagreement:.0%} of the predictions differ from the frozen network's"
        levels: tuple[tuple[HealthState, dict[str, float]], ...] = (("collapsed", _COLLAPSED), ("drifting", _DRIFTING))
        for state, limits in levels:
            if ratio < limits["ratio"] and disagreement > limits["with disagreement"]:
                return state, f"predictions concentrate on few classes, and {differ}"
            if disagreement > limits["disagreement"]:
                return state, differ
        if math.isnan(ratio) and self.mean_entropy < _FEW_CLASSES and self.kept > 0:
            return (
                "drifting",
                "predictions concentrate on few classes, and nothing compares them with the frozen network's",
            )
        return "healthy", None

    @property
    def blames_statistics(self) -> bool:
        """Whether the statistics are at fault rather than the weights."""
        return self.statistics_gap > _STATISTICS_GAP

    @classmethod
    def from_averages(cls, averages: Sequence[float]) -> "Health":
        """Compute the indicators from what a `HealthMonitor` keeps."""
        half = (len(averages) - 2) // 2
        *ours, kept = averages[:half]
        *source, disagreement = averages[half:-2]
        entropy, source_entropy = _relative_entropy(ours), _relative_entropy(source)
        return cls(
            mean_entropy=entropy,
            mean_entropy_ratio=_divide(entropy, source_entropy),
            disagreement=_divide(disagreement, sum(source)),
            distance=averages[-2],
            kept=_divide(kept, sum(ours)),
            statistics_gap=averages[-1],
        )


def _divide(value: float, by: float) -> float:
    return value / by if by > 0 else math.nan


def _relative_entropy(weights: Sequence[float]) -> float:
    """The entropy of a distribution over its largest possible value; weights need not sum to one."""
    total = sum(weights)
    if not total > 0 or len(weights) < 2:
        return math.nan
    shares = [weight / total for weight in weights if weight > 0]
    return -sum(share * math.log(share) for share in shares) / math.log(len(weights))
