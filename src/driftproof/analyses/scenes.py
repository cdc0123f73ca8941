"""Run an adapter on driving scenes and record its predictions, rejections and alarms."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from driftproof.adapter import Adapter
from driftproof.alarm import Alarm, Event
from driftproof.corruptions import FrostPhotos, check_corruption, corrupt
from driftproof.errors import ConfigurationError, InputError, ModelError

__all__ = ["Corruption", "FrameResult", "Frames", "adapt_to_frames"]


class Frames(Protocol):
    """Frames by index, such as `driftproof.data.Scenes`."""

    @property
    def name(self) -> str:
        """Name of the dataset."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Read a frame, uint8 (3, H, W), and the class of each pixel, (H, W), if known."""


@dataclass(frozen=True)
class Corruption:
    """A corruption applied to every frame.

    Attributes:
        name: One of `driftproof.corruptions`.
        severity: From 1 to 5.
        frost_photos: For frost; None uses the `imagecorruptions-imaug` package.
    """

    name: str
    severity: int = 5
    frost_photos: FrostPhotos | None = None

    def __post_init__(self) -> None:
        check_corruption(self.name, self.severity)


@dataclass(frozen=True, eq=False)
class FrameResult:
    """One frame with the predictions, rejections and alarms of an adapter.

    Attributes:
        index: Of the frame in its dataset.
        image: The input of the model, uint8 (3, H, W).
        predicted: The predicted class of each pixel, (H, W).
        rejected: Pixels that the step did not learn from, (H, W); None if the method does not learn.
        events: The alarms, with boxes in pixels of the frame.
        labels: The true class of each pixel, `UNKNOWN` or `VOID`, (H, W); None without ground truth.
        skipped: Why the step was skipped, or None.
    """

    index: int
    image: Tensor
    predicted: Tensor
    rejected: Tensor | None
    events: tuple[Event, ...]
    labels: Tensor | None = None
    skipped: str | None = None


def adapt_to_frames(
    adapter: Adapter,
    scenes: Frames,
    *,
    alarm: Alarm,
    count: int,
    every: int = 1,
    batch_size: int = 2,
    corruption: Corruption | None = None,
) -> Iterator[FrameResult]:
    """Adapt to the frames of a dataset in order, and yield some of them with their results.

    Args:
        adapter: Prepared, if its method requires it.
        scenes: The frames.
        alarm: Detects novel regions.
        count: Maximum number of frames to yield.
        every: Yield one of this many frames; the adapter still adapts to all of them.
        batch_size: Frames per step.
        corruption: Applied to every frame first.
    """
    if min(count, every, batch_size) < 1:
        raise ConfigurationError(
            f"Expected `count`, `every` and `batch_size` to be at least 1, but got {count}, {every} and {batch_size}."
        )
    wanted = range(0, len(scenes), every)[:count]
    for start in range(0, wanted[-1] + 1, batch_size):
        indices = list(range(len(scenes))[start : start + batch_size])
        yield from _adapt_to_batch(adapter, scenes, indices, alarm, corruption, wanted)


def _adapt_to_batch(
    adapter: Adapter, scenes: Frames, indices: list[int], alarm: Alarm, corruption: Corruption | None, wanted: range
) -> Iterator[FrameResult]:
    pairs = [scenes.read(index) for index in indices]
    frames = torch.stack([frame for frame, _ in pairs])
    if corruption is not None:
        frames = corrupt(
            frames.to(adapter.device),
            corruption.name,
            corruption.severity,
            dataset=scenes.name,
            indices=torch.tensor(indices),
            frost_photos=corruption.frost_photos,
        ).cpu()
    logits = adapter(frames.to(adapter.device).float().div_(255))
    if logits.ndim != 4 or logits.shape[2:] != frames.shape[2:]:
        raise ModelError(
            f"Expected logits for every pixel of frames of shape {tuple(frames.shape)}, but the model's are of shape "
            f"{tuple(logits.shape)}. Use a segmentation network with outputs of the size of its input."
        )
    rows = [row for row, index in enumerate(indices) if index in wanted]
    if not rows:
        return
    predicted, record = logits.argmax(dim=1).cpu(), adapter.last
    rejected = None if record.objective is None else ~record.selected.cpu()
    events = alarm(record.novelty.cpu())
    for row in rows:
        index, labels = indices[row], pairs[row][1]
        if labels is not None and labels.shape != frames.shape[2:]:
            raise InputError(
                f"Expected labels of the frame's size, but those of frame {index} of {scenes.name} differ."
            )
        own = tuple(event for event in events if event.sample == row)
        frame_rejected = None if rejected is None else rejected[row]
        yield FrameResult(index, frames[row], predicted[row], frame_rejected, own, labels, record.skipped)
