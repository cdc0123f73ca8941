"""What an adapter makes of driving scenes, frame by frame."""

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
        """What the set is called."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[Tensor, Tensor | None]:
        """A frame, bytes of shape (3, H, W), and the class of each of its pixels, (H, W), if known."""


@dataclass(frozen=True)
class Corruption:
    """What has happened to every frame.

    Attributes:
        name: One of `driftproof.corruptions`.
        severity: From 1 to 5.
        frost_photos: For frost; None looks for the `imagecorruptions-imaug` package.
    """

    name: str
    severity: int = 5
    frost_photos: FrostPhotos | None = None

    def __post_init__(self) -> None:
        check_corruption(self.name, self.severity)


@dataclass(frozen=True, eq=False)
class FrameResult:
    """What an adapter made of one frame.

    Attributes:
        index: Place of the frame in its set.
        frame: As the model saw it, bytes of shape (3, H, W).
        predicted: The class of each pixel, (H, W).
        rejected: Which pixels the step did not learn from, (H, W); None if the method learns from nothing.
        events: The alarms in it, their boxes in pixels of the frame.
        labels: The true class of each pixel, `UNKNOWN` or `VOID`, (H, W); None where there are none.
        skipped: Why the step changed nothing, or None.
    """

    index: int
    frame: Tensor
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
    """Adapt to the frames of a set in their order, and look at some of them.

    Args:
        adapter: Prepared, if its method asks for that.
        scenes: The frames.
        alarm: Tells which regions are unfamiliar.
        count: How many frames to look at, if there are so many.
        every: Look at one of so many; the adapter meets those in between as well.
        batch_size: Frames per step.
        corruption: What happens to every frame first.
    """
    if min(count, every, batch_size) < 1:
        raise ConfigurationError(
            f"Expected `count`, `every` and `batch_size` to be at least 1, but got {count}, {every} and {batch_size}."
        )
    wanted = range(0, len(scenes), every)[:count]
    for start in range(0, wanted[-1] + 1, batch_size):
        places = list(range(len(scenes))[start : start + batch_size])
        yield from _adapt_to_batch(adapter, scenes, places, alarm, corruption, wanted)


def _adapt_to_batch(
    adapter: Adapter, scenes: Frames, places: list[int], alarm: Alarm, corruption: Corruption | None, wanted: range
) -> Iterator[FrameResult]:
    pairs = [scenes.read(place) for place in places]
    frames = torch.stack([frame for frame, _ in pairs])
    if corruption is not None:
        frames = corrupt(
            frames.to(adapter.device),
            corruption.name,
            corruption.severity,
            dataset=scenes.name,
            indices=torch.tensor(places),
            frost_photos=corruption.frost_photos,
        ).cpu()
    logits = adapter(frames.to(adapter.device).float().div_(255))
    if logits.ndim != 4 or logits.shape[2:] != frames.shape[2:]:
        raise ModelError(
            f"Expected logits for every pixel of frames of shape {tuple(frames.shape)}, but the model's are of shape "
            f"{tuple(logits.shape)}. It has to be a segmentation network that answers at the size of its input."
        )
    looked_at = [row for row, place in enumerate(places) if place in wanted]
    if not looked_at:
        return
    predicted, record = logits.argmax(dim=1).cpu(), adapter.last
    rejected = None if record.objective is None else ~record.selected.cpu()
    events = alarm(record.novelty.cpu())
    for row in looked_at:
        place, labels = places[row], pairs[row][1]
        if labels is not None and labels.shape != frames.shape[2:]:
            raise InputError(f"Expected labels of the frame's size, but frame {place} of {scenes.name} has others.")
        own = tuple(event for event in events if event.sample == row)
        left_out = None if rejected is None else rejected[row]
        yield FrameResult(place, frames[row], predicted[row], left_out, own, labels, record.skipped)
