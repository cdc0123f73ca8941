"""Predict batches of images with an adapter, in the one thread that owns it."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from driftproof.errors import DriftproofError, ForwardError, InputError, ModelError
from driftproof.monitor import Monitor
from driftproof.serve.errors import RequestError

if TYPE_CHECKING:
    from driftproof.adapter import Adapter
    from driftproof.alarm import Alarm
    from driftproof.record import StepResult

__all__ = ["Answer", "Image", "Predictor"]

Answer = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Image:
    """A decoded image.

    Attributes:
        name: Its name.
        pixels: uint8, (3, H, W).
    """

    name: str
    pixels: Tensor


@dataclass
class Predictor:
    """Predicts batches and learns from them.

    Images of several sizes make one step for each size. A batch on which the model fails changes nothing, and its
    images have an error.

    Attributes:
        adapter: The adapter; nothing else may use it.
        alarm: Flags novel images; None flags none.
        class_names: Names of the classes; empty if unknown.
        monitor: Gets the record of each batch.
        learns: Whether to learn; otherwise batches are only predicted.
        on_alarm: Called with an image, its answer and the time, for each alarm.
        num_batches: How many steps were taken.
    """

    adapter: "Adapter"
    alarm: "Alarm | None" = None
    class_names: Sequence[str] = ()
    monitor: Monitor = field(default_factory=Monitor)
    learns: bool = True
    on_alarm: Callable[[Image, Answer, float], None] | None = None
    num_batches: int = 0

    def predict(self, images: Sequence[Image]) -> list[Answer | DriftproofError]:
        """Return the answer to each image, or why it has none."""
        groups: dict[torch.Size, list[int]] = {}
        for index, image in enumerate(images):
            groups.setdefault(image.pixels.shape, []).append(index)
        answers: dict[int, Answer | DriftproofError] = {}
        for indices in groups.values():
            group = [images[index] for index in indices]
            answers |= dict(zip(indices, self._predict_group(group), strict=True))
        return [answers[index] for index in range(len(images))]

    def _predict_group(self, images: list[Image]) -> Sequence[Answer | DriftproofError]:
        started = time.perf_counter()
        try:
            result = self._run(torch.stack([image.pixels for image in images]))
        except (ForwardError, InputError, ModelError) as error:  # the adapter is as it was before the batch
            self.monitor(None, errors=[str(error)] * len(images), seconds=time.perf_counter() - started)
            return [RequestError("model_failed", str(error))] * len(images)
        seconds = time.perf_counter() - started
        self.num_batches += 1
        logits, record = result
        novelty = record.novelty + 0.0  # turns −0.0 into 0.0
        events = [] if self.alarm is None else self.alarm(novelty)
        names = [image.name for image in images]
        self.monitor(record, events, logits=logits, names=names, seconds=seconds)
        answers = self._make_answers(result, novelty, {event.sample for event in events}, names)
        if self.on_alarm is not None:
            now = time.time()
            for event in events:
                self.on_alarm(images[event.sample], answers[event.sample], now)
        return answers

    def _run(self, pixels: Tensor) -> "StepResult":
        images = pixels.to(self.adapter.device).float().div_(255)
        with warnings.catch_warnings():
            # The monitor passes on what guards would say.
            warnings.filterwarnings("ignore", "Adaptation is", RuntimeWarning)
            result = self.adapter.step(images) if self.learns else self.adapter.predict(images)
        if result.logits.ndim != 2:
            raise ModelError(
                f"Expected a classifier with logits of shape (N, C), but got shape {tuple(result.logits.shape)}."
            )
        return result

    def _make_answers(self, result: "StepResult", novelty: Tensor, alarmed: set[int], names: list[str]) -> list[Answer]:
        logits, record = result
        best = logits.float().softmax(dim=1).max(dim=1)
        health = None if math.isnan(record.health.disagreement) else record.health.state
        columns = (
            best.indices,
            best.values,
            logits.isfinite().all(dim=1),
            novelty,
            record.selected,
            record.quarantined,
        )
        rows = zip(names, *(column.tolist() for column in columns), strict=True)
        return [
            {
                "name": name,
                "predicted": predicted if known else None,
                "class": self._class_name(predicted) if known else None,
                "probability": probability if known else None,
                "novelty": score if known and math.isfinite(score) else None,
                "selected": selected,
                "quarantined": quarantined,
                "alarm": None if self.alarm is None else index in alarmed,
                "health": health,
                "error": None,
            }
            for index, (name, predicted, probability, known, score, selected, quarantined) in enumerate(rows)
        ]

    def _class_name(self, predicted: int) -> str | None:
        return self.class_names[predicted] if predicted < len(self.class_names) else None
