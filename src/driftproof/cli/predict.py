"""Predict batches of images and turn the results into rows."""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from driftproof.cli.class_names import ClassNames
from driftproof.cli.labels import Labels, check_outputs
from driftproof.cli.prediction_rows import Cell, Row
from driftproof.errors import ConfigurationError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from driftproof.adapter import Adapter
    from driftproof.alarm import Alarm
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
        paths: All images.
        names: Class names; empty if unknown.
        top_k: How many of the most likely classes to list.
        labels: The labels; None if there are none.
        alarm: Flags novel images; None flags none.
    """

    paths: list[Path]
    names: ClassNames = ()
    top_k: int = 1
    labels: Labels | None = None
    alarm: "Alarm | None" = None

    def rows(self, indices: tuple[int, ...], logits: "Tensor", record: "Record") -> list[Row]:
        """Return a row for each image of a batch, in the order of the columns of `make_columns`.

        Args:
            indices: Positions of the images in `paths`.
            logits: Their logits, (N, C).
            record: The record of the batch.
        """
        self._check(logits.shape[1])
        novelties = record.novelty + 0.0  # turns −0.0 into 0.0
        alarmed = None if self.alarm is None else {event.sample for event in self.alarm(novelties)}
        best = logits.softmax(dim=1).topk(self.top_k, dim=1)
        finite = logits.isfinite().all(dim=1).tolist()
        columns = (best.indices.tolist(), best.values.tolist(), finite, novelties.tolist())
        masks = (record.selected.tolist(), record.quarantined.tolist())
        health = None if math.isnan(record.health.disagreement) else record.health.state
        rows = []
        for place, (index, classes, probabilities, known, novelty, selected, quarantined) in enumerate(
            zip(indices, *columns, *masks, strict=True)
        ):
            row: list[Cell] = [index, _printable(str(self.paths[index]))]
            for predicted, probability in zip(classes, probabilities, strict=True):
                row += self._class_cells(predicted, probability) if known else self._class_cells(None, None)
            row += [novelty if known else None, selected, quarantined]
            row += [None if alarmed is None else place in alarmed, health, *self._label_cells(index), None]
            rows.append(tuple(row))
        return rows

    def error_row(self, index: int, message: str) -> Row:
        """Return the row of an image without a prediction."""
        empty = self.top_k * (3 if self.names else 2) + 5
        error = _printable(" ".join(message.split()))
        return (index, _printable(str(self.paths[index])), *[None] * empty, *self._label_cells(index), error)

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


def _printable(text: str) -> str:
    # File names may contain bytes that are not valid UTF-8, which no table format can store.
    return text.encode(errors="backslashreplace").decode()
