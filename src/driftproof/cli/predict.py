"""Predict batches of images and turn the results into rows."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftproof.cli.class_names import ClassNames
from driftproof.cli.frames import format_name
from driftproof.cli.labels import Labels, check_outputs
from driftproof.cli.prediction_rows import Cell, Row
from driftproof.errors import ConfigurationError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from driftproof.adapter import Adapter
    from driftproof.alarm import Alarm, Event
    from driftproof.record import Record, StepResult

__all__ = ["RowMaker", "predict", "predicted_classes"]


def predict(adapter: "Adapter", pixels: "Tensor") -> "StepResult":
    """Predict a batch of 8-bit images and learn from it; raise `ModelError` if the model is no classifier.

    Warnings of guards are left out: the summary of a run says the same in the words of the command line.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Adaptation is", RuntimeWarning)
        result = adapter.step(pixels.to(adapter.device).float().div_(255))
    if result.logits.ndim != 2:
        raise ModelError(
            f"Expected a classifier with logits of shape (N, C), but got shape {tuple(result.logits.shape)}. "
            "For segmentation use `driftproof analyze scenes`."
        )
    return result


def predicted_classes(logits: "Tensor") -> list[int | None]:
    """Return the index of the predicted class of each image; None where the logits are not finite."""
    finite = logits.isfinite().all(dim=1).tolist()
    return [best if known else None for best, known in zip(logits.argmax(dim=1).tolist(), finite, strict=True)]


@dataclass(frozen=True)
class RowMaker:
    """Makes the rows of the table of predictions.

    Attributes:
        names: Class names; empty if unknown.
        top_k: How many of the most likely classes to list.
        labels: The labels; None if there are none.
        alarm: Flags novel images; None flags none.
    """

    names: ClassNames = ()
    top_k: int = 1
    labels: Labels | None = None
    alarm: "Alarm | None" = None

    def find_alarms(self, record: "Record") -> "list[Event]":
        """Return the images of a batch that raise the alarm."""
        return [] if self.alarm is None else self.alarm(record.novelty + 0.0)  # turns −0.0 into 0.0

    def rows(
        self, images: Mapping[int, str], logits: "Tensor", record: "Record", alarms: "Sequence[Event]" = ()
    ) -> list[Row]:
        """Return a row for each image of a batch, in the order of the columns of `make_columns`.

        Args:
            images: Names of the images by position in the run.
            logits: Their logits, (N, C).
            record: The record of the batch.
            alarms: Those that raise the alarm.
        """
        self._check(logits.shape[1])
        novelties = record.novelty + 0.0
        alarmed = None if self.alarm is None else {event.sample for event in alarms}
        best = logits.softmax(dim=1).topk(self.top_k, dim=1)
        finite = logits.isfinite().all(dim=1).tolist()
        columns = (best.indices.tolist(), best.values.tolist(), finite, novelties.tolist())
        masks = (record.selected.tolist(), record.quarantined.tolist())
        health = None if math.isnan(record.health.disagreement) else record.health.state
        rows = []
        for place, ((index, name), classes, probabilities, known, novelty, selected, quarantined) in enumerate(
            zip(images.items(), *columns, *masks, strict=True)
        ):
            row: list[Cell] = [index, name]
            for predicted, probability in zip(classes, probabilities, strict=True):
                row += self._class_cells(predicted, probability) if known else self._class_cells(None, None)
            row += [novelty if known else None, selected, quarantined]
            row += [None if alarmed is None else place in alarmed, health, *self._label_cells(index), None]
            rows.append(tuple(row))
        return rows

    def error_row(self, index: int, name: str, message: str) -> Row:
        """Return the row of an image without a prediction."""
        empty = self.top_k * (3 if self.names else 2) + 5
        error = format_name(" ".join(message.split()))
        return (index, name, *[None] * empty, *self._label_cells(index), error)

    def _label_cells(self, index: int) -> list[Cell]:
        if self.labels is None:
            return []
        label = self.labels.values[index]
        return [label if label >= 0 else None]

    def _check(self, outputs: int) -> None:
        check_outputs(outputs, self.names, self.labels)
        if self.top_k > outputs:
            raise ConfigurationError(
                f"Expected `--top-k` of at most {outputs}, the model's classes, but got {self.top_k}."
            )

    def _class_cells(self, predicted: int | None, probability: float | None) -> list[Cell]:
        if not self.names:
            return [predicted, probability]
        return [predicted, None if predicted is None else self.names[predicted], probability]
