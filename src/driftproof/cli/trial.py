"""One method on trial: its adapter, and what it did on the images so far."""

import math
import time
from typing import TYPE_CHECKING

from driftproof.cli.class_names import ClassNames
from driftproof.cli.labels import UNKNOWN, Labels, check_outputs
from driftproof.cli.predict import predict, predicted_classes
from driftproof.cli.recommendation import Outcome
from driftproof.cli.run_summary import RunSummary

if TYPE_CHECKING:
    from driftproof.adapter import Adapter
    from driftproof.cli.images import LoadedBatch

__all__ = ["Trial"]


class Trial:
    """Runs a method on batches and remembers what it predicted.

    Args:
        method: Name of the method.
        adapter: Its adapter.
        labels: The labels of all images; None if there are none.
        names: Class names; empty if unknown.

    Attributes:
        method: Name of the method.
        summary: Counts over the batches.
        predicted: Index of the predicted class by position of the image; None where the logits are not finite.
    """

    def __init__(self, method: str, adapter: "Adapter", labels: Labels | None = None, names: ClassNames = ()) -> None:
        self.method = method
        self.summary = RunSummary()
        self._adapter = adapter
        self._labels = labels
        self._names = names
        self.predicted: dict[int, int | None] = {}
        self._novelties: dict[int, float] = {}
        self._timings: list[tuple[float, int]] = []

    def step(self, batch: "LoadedBatch") -> None:
        """Predict a batch and learn from it."""
        if batch.pixels is None:
            return
        started = time.perf_counter()
        logits, record = predict(self._adapter, batch.pixels)
        predicted = predicted_classes(logits)  # waits for the device
        self._timings.append((time.perf_counter() - started, len(predicted)))
        check_outputs(logits.shape[1], self._names, self._labels)
        self.predicted.update(zip(batch.indices, predicted, strict=True))
        self._novelties.update(zip(batch.indices, record.novelty.tolist(), strict=True))
        labels = None if self._labels is None else [self._labels.values[index] for index in batch.indices]
        self.summary.add(record, predicted, labels)

    def outcome(self, source: "Trial") -> Outcome:
        """Return what the method did, compared with the model as it is on the same images."""
        same = sum(self.predicted[index] == answer for index, answer in source.predicted.items())
        return Outcome(
            self.method,
            correct=tuple(self.predicted[index] == label for index, label in self._labeled() if label >= 0),
            agreement=same / max(1, len(self.predicted)),
            state=self.summary.state,
            actions=max(self.summary.actions.values(), default=0),
            batches=self.summary.batches,
        )

    @property
    def novelty(self) -> float:
        """The mean novelty of the images that have one."""
        finite = self._finite_novelties().values()
        return sum(finite) / len(finite) if finite else math.nan

    @property
    def auroc(self) -> float | None:
        """How well the novelty tells images of unknown classes from labeled ones; None if one kind is missing."""
        import torch

        from driftproof.metrics import auroc

        novelties = self._finite_novelties()
        unknown = [novelties[index] for index, label in self._labeled() if label == UNKNOWN and index in novelties]
        known = [novelties[index] for index, label in self._labeled() if label >= 0 and index in novelties]
        return auroc(torch.tensor(unknown), torch.tensor(known)) if unknown and known else None

    @property
    def milliseconds(self) -> float:
        """Time per image; without the first batch, which is slower, if there are others."""
        timings = self._timings[1:] or self._timings
        return 1000 * sum(seconds for seconds, _ in timings) / max(1, sum(count for _, count in timings))

    def _labeled(self) -> list[tuple[int, int]]:
        labels = () if self._labels is None else self._labels.values
        return [(index, label) for index, label in enumerate(labels) if index in self.predicted]

    def _finite_novelties(self) -> dict[int, float]:
        return {index: novelty for index, novelty in self._novelties.items() if math.isfinite(novelty)}
