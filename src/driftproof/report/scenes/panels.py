"""One frame in pictures: what came in, what the model saw in it, what it left out, what alarmed it, what is true."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from driftproof.alarm import Event
from driftproof.analyses.scenes import FrameResult
from driftproof.data.scenes import SceneClass
from driftproof.optional import require
from driftproof.report.scenes.colorize import REJECTED_COLOR, colorize

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ALARM_COLOR", "TITLES", "FramePanel", "make_panels"]

ALARM_COLOR = (255, 214, 0)

TITLES = {
    "input": "Input",
    "prediction": "Prediction",
    "rejected": "Rejected in black",
    "alarm": "Alarms",
    "truth": "Ground truth",
}


@dataclass(frozen=True)
class FramePanel:
    """One picture of a frame.

    Attributes:
        kind: A key of `TITLES`.
        image: The picture, of the frame's size.
        photograph: Whether it shows the frame itself; else it is a map of flat colors, to be scaled without mixing.
    """

    kind: str
    image: "Image"
    photograph: bool

    def scaled(self, width: int) -> "Image":
        """The picture at most so many pixels wide."""
        if self.image.width <= width:
            return self.image
        how = require("PIL.Image", "Drawing scenes").Resampling
        height = max(1, round(self.image.height * width / self.image.width))
        return self.image.resize((width, height), how.BICUBIC if self.photograph else how.NEAREST)


def make_panels(view: FrameResult, palette: Sequence[SceneClass]) -> list[FramePanel]:
    """The pictures of a frame, in the order of `TITLES`; those that there is nothing to show for are left out.

    Args:
        view: What an adapter made of the frame.
        palette: Its classes.
    """
    shown = [FramePanel("input", _frame_image(view.frame), photograph=True)]
    prediction = colorize(view.predicted, palette)
    shown.append(FramePanel("prediction", _to_image(prediction), photograph=False))
    if view.rejected is not None:
        without = prediction.copy()
        without[view.rejected.numpy()] = REJECTED_COLOR
        shown.append(FramePanel("rejected", _to_image(without), photograph=False))
    shown.append(FramePanel("alarm", _draw_boxes(_frame_image(view.frame), view.events), photograph=True))
    if view.labels is not None:
        shown.append(FramePanel("truth", _to_image(colorize(view.labels, palette)), photograph=False))
    return shown


def _frame_image(frame: Tensor) -> "Image":
    return _to_image(frame.permute(1, 2, 0).contiguous().numpy())


def _to_image(pixels: "np.typing.NDArray[np.uint8]") -> "Image":
    image: Image = require("PIL.Image", "Drawing scenes").fromarray(pixels)
    return image


def _draw_boxes(image: "Image", events: Sequence[Event]) -> "Image":
    draw = require("PIL.ImageDraw", "Drawing scenes").Draw(image)
    line = max(2, round(image.height / 120))
    for top, left, bottom, right in (event.box for event in events if event.box is not None):
        outer = (left - line, top - line, right - 1 + line, bottom - 1 + line)
        draw.rectangle((outer[0] - 1, outer[1] - 1, outer[2] + 1, outer[3] + 1), outline=(0, 0, 0), width=line + 1)
        draw.rectangle(outer, outline=ALARM_COLOR, width=line)
    return image
