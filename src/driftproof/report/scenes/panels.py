"""The panels of one frame: input, prediction, rejected pixels, alarms and ground truth."""

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
    """One image of a frame.

    Attributes:
        kind: A key of `TITLES`.
        image: The image, in the frame's size.
        is_photo: Whether it shows the frame itself; otherwise it is a class map, scaled by nearest neighbor.
    """

    kind: str
    image: "Image"
    is_photo: bool

    def scaled(self, width: int) -> "Image":
        """The image, scaled down to a maximum width."""
        if self.image.width <= width:
            return self.image
        resampling = require("PIL.Image", "Drawing scenes").Resampling
        height = max(1, round(self.image.height * width / self.image.width))
        return self.image.resize((width, height), resampling.BICUBIC if self.is_photo else resampling.NEAREST)


def make_panels(frame: FrameResult, palette: Sequence[SceneClass]) -> list[FramePanel]:
    """Make the panels of a frame in the order of `TITLES`; panels without data are left out.

    Args:
        frame: The frame with its predictions.
        palette: The model's classes.
    """
    shown = [FramePanel("input", _frame_image(frame.image), is_photo=True)]
    prediction = colorize(frame.predicted, palette)
    shown.append(FramePanel("prediction", _to_image(prediction), is_photo=False))
    if frame.rejected is not None:
        without = prediction.copy()
        without[frame.rejected.numpy()] = REJECTED_COLOR
        shown.append(FramePanel("rejected", _to_image(without), is_photo=False))
    shown.append(FramePanel("alarm", _draw_boxes(_frame_image(frame.image), frame.events), is_photo=True))
    if frame.labels is not None:
        shown.append(FramePanel("truth", _to_image(colorize(frame.labels, palette)), is_photo=False))
    return shown


def _frame_image(image: Tensor) -> "Image":
    return _to_image(image.permute(1, 2, 0).contiguous().numpy())


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
