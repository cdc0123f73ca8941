"""What a run over images ended with: counts, accuracy, health and guard events."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from driftproof.cli import bridge

if TYPE_CHECKING:
    from driftproof.record import Record

__all__ = ["RunSummary", "format_health"]


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
        states: Batches by state of health.
        health: Health after the last batch; None where nothing measures it.
    """

    images: int = 0
    selected: int = 0
    quarantined: int = 0
    labeled: int = 0
    correct: int = 0
    batches: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    health: Any = None

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
        self.quarantined += int(bridge.quarantined(record).sum())
        for answer, label in zip(predicted, labels or (), strict=labels is not None):
            self.labeled += label >= 0
            self.correct += label >= 0 and answer == label
        if record.skipped is not None:
            self.skipped[record.skipped] += 1
        self.actions.update(set(bridge.actions(record)))
        self.health = bridge.health(record)
        if self.health is not None:
            self.states[self.health.state] += 1

    @property
    def accuracy(self) -> float | None:
        """Share of labeled images that were predicted right; None without labels."""
        return self.correct / self.labeled if self.labeled else None

    @property
    def healthy(self) -> bool:
        """Whether the run ended healthy."""
        return self.health is None or self.health.state == "healthy"

    def lines(self) -> list[str]:
        """Describe accuracy, health and guard events, one line each; what did not happen has no line."""
        lines = []
        if self.accuracy is not None:
            lines.append(f"accuracy: {self.accuracy:.1%} of {self.labeled} labeled images")
        if self.health is not None:
            lines.append(f"health: {format_health(self.health)}")
        if self.actions:
            events = [f"{action} on {count} of {self.batches} batches" for action, count in self.actions.items()]
            lines.append(f"guards: {', '.join(events)}")
        if self.quarantined:
            lines.append(
                f"warning: {self.quarantined} images were quarantined: not finite, or far from all the others. They "
                "changed nothing; the column `quarantined` names them."
            )
        if not self.healthy:
            lines.append(
                "warning: adaptation ended unhealthy, and its predictions may be worse than the model's own. Compare "
                "with `--method source`, or let `driftproof try` find a method that suits."
            )
        return lines


def format_health(health: Any) -> str:  # noqa: ANN401
    """Describe health in words and numbers."""
    return (
        f"{health.state} (mean prediction's entropy {health.mean_entropy:.2f} of ln C, "
        f"{health.mean_entropy_ratio:.2f} of the frozen network's; {health.disagreement:.0%} of predictions differ "
        f"from it; moved by {health.distance:.2g}; learned from {health.kept:.0%})"
    )
