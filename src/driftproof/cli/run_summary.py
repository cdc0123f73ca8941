"""What a run over images ended with: counts, accuracy, health and guard events."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

if TYPE_CHECKING:
    from driftproof.health import Health
    from driftproof.record import Record

__all__ = ["RunSummary", "count_of", "format_health"]

_ADVICE = {
    True: "Use `--order random`, a larger `--batch-size` or `--option statistics=auto`.",
    False: "Use `--method adapt`, lower the learning rate with `--option lr=…`, or add `+crowd` to the method.",
}


@dataclass
class RunSummary:
    """Counts over the batches of a run.

    Attributes:
        images: How many images were predicted.
        selected: How many of them the steps learned from.
        quarantined: How many were kept out.
        labeled: How many have a label.
        correct: How many of these were predicted right.
        batches: Number of batches.
        skipped: Batches without a step, by reason.
        actions: Batches on which a guard acted, by action.
        health: Health after the last batch; None before the first.
        alarms: How many images raised the alarm.
        unpredicted: How many images have no prediction, because they could not be read or the model failed on them.
        first_unhealthy: The first batch after which health was bad, from 1, and health then; None if it never was.
    """

    images: int = 0
    selected: int = 0
    quarantined: int = 0
    labeled: int = 0
    correct: int = 0
    batches: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)
    alarms: int = 0
    unpredicted: int = 0
    health: "Health | None" = None
    first_unhealthy: "tuple[int, Health] | None" = None

    def add(self, record: "Record", predicted: Sequence[int | None], labels: Sequence[int] | None = None) -> None:
        """Count a batch.

        Args:
            record: The record of the batch.
            predicted: Index of the predicted class of each image; None where the logits are not finite.
            labels: Label of each image, negative where there is none; None without labels.
        """
        self.batches += 1
        self.images += len(predicted)
        self.selected += int(record.selected.sum())
        self.quarantined += int(record.quarantined.sum())
        for answer, label in zip(predicted, labels or (), strict=labels is not None):
            self.labeled += label >= 0
            self.correct += label >= 0 and answer == label
        if record.skipped is not None:
            self.skipped[record.skipped] += 1
        self.actions.update(set(record.actions))
        self.health = record.health
        if self.first_unhealthy is None and self.health.state != "healthy":
            self.first_unhealthy = self.batches, self.health

    def to_json(self) -> dict[str, Any]:
        """Return the counts as data for JSON."""
        healths = {
            "health": None if self.health is None else asdict(self.health),
            "first_unhealthy": self.first_unhealthy and (self.first_unhealthy[0], asdict(self.first_unhealthy[1])),
        }
        return vars(self) | {"skipped": dict(self.skipped), "actions": dict(self.actions)} | healths

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the summary that `to_json` described."""
        from driftproof.health import Health

        health, first = data["health"], data["first_unhealthy"]
        counts = {name: Counter(data[name]) for name in ("skipped", "actions")}
        healths = {
            "health": None if health is None else Health(**health),
            "first_unhealthy": None if first is None else (first[0], Health(**first[1])),
        }
        return cls(**data | counts | healths)

    @property
    def accuracy(self) -> float | None:
        """Share of labeled images that were predicted right; None without labels."""
        return self.correct / self.labeled if self.labeled else None

    @property
    def state(self) -> str | None:
        """State of health at the end; None where nothing measured it."""
        return None if self.health is None or math.isnan(self.health.disagreement) else self.health.state

    def lines(self) -> list[str]:
        """Describe accuracy, health and guard events, one line each; what did not happen has no line."""
        lines = []
        if self.accuracy is not None:
            lines.append(f"accuracy: {self.accuracy:.1%} of {count_of(self.labeled, 'labeled image')}")
        if self.health is not None and self.state is not None:
            lines.append(f"health: {format_health(self.health)}")
        if self.actions:
            events = [
                f"{action} on {count} of {count_of(self.batches, 'batch')}" for action, count in self.actions.items()
            ]
            lines.append(f"warning: guards stepped in: {', '.join(events)}")
        if self.quarantined:
            lines.append(
                f"warning: {count_of(self.quarantined, 'image')} quarantined: not finite, or far from all the others. "
                "They changed nothing and have no prediction; the column `quarantined` names them."
            )
        return lines + self._warnings()

    def _warnings(self) -> list[str]:
        if self.first_unhealthy is None:
            return []
        batch, health = self.first_unhealthy
        lines = [
            f"warning: adaptation was {health.state} after {batch} of {count_of(self.batches, 'batch')}: "
            f"{health.reason}. "
            f"{_ADVICE[health.blames_statistics]}"
        ]
        if self.state not in (None, "healthy"):
            lines.append(
                f"warning: the run ended {self.state}: its predictions may be worse than the model's own. Compare with "
                "`--method source`, or let `driftproof try` find a method."
            )
        return lines


def format_health(health: "Health") -> str:
    """Describe health in words and numbers; what was not measured is left out.

    Examples:
        >>> from driftproof.health import Health
        >>> format_health(Health(mean_entropy=0.98, disagreement=0.125))
        "healthy; entropy of the mean prediction 0.98; 12% of predictions differ from the frozen network's"
    """
    described = {
        f"entropy of the mean prediction {health.mean_entropy:.2f}": health.mean_entropy,
        f"{health.mean_entropy_ratio:.2f} of the frozen network's": health.mean_entropy_ratio,
        f"{health.disagreement:.0%} of predictions differ from the frozen network's": health.disagreement,
        f"weights moved by {health.distance:.2%}": health.distance,
        f"kept {health.kept:.0%} of the samples": health.kept,
        f"gap of the statistics {health.statistics_gap:.3f}": health.statistics_gap,
    }
    return "; ".join([health.state, *(text for text, value in described.items() if not math.isnan(value))])


def count_of(count: int, noun: str) -> str:
    """Return a count with its noun.

    Examples:
        >>> count_of(1, "image"), count_of(0, "batch")
        ('1 image', '0 batches')
    """
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"
