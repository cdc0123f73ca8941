"""`FitHeight`: resize frames to one size."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftproof.errors import ConfigurationError
from driftproof.optional import require

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Box", "FitHeight"]

Box = tuple[int, int, int, int]
"""(top, left, bottom, right), the last two exclusive."""


@dataclass(frozen=True)
class FitHeight:
    """Resize to a height, keeping the aspect ratio, then crop or pad the sides to a width.

    Frames are resized bicubically, labels by the nearest pixel. Padding is black in frames and `VOID` in labels;
    `Scenes.content_box` tells where it is if there are no labels.

    Attributes:
        height: In pixels.
        width: In pixels; None keeps the width after resizing, rounded down. With a width, frames of any aspect ratio
            fit into one batch.

    Examples:
        >>> FitHeight(800).extent(1052, 1914)
        (800, 1455)
        >>> FitHeight(800, width=1422).content_box(1200, 1600)
        (0, 178, 800, 1244)
    """

    height: int
    width: int | None = None

    def __post_init__(self) -> None:
        if self.height < 1 or (self.width is not None and self.width < 1):
            raise ConfigurationError(
                f"Expected `height` and `width` to be at least 1, but got {self.height} and {self.width}."
            )

    def extent(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of the result for an image of this size."""
        return self.height, self.width or self._scaled_width(height, width)

    def content_box(self, height: int, width: int) -> Box:
        """Return the part of the result that is not padding."""
        scaled = self._scaled_width(height, width)
        left = _columns_to_cut(scaled, self.width)
        return 0, max(0, -left), self.height, min(self.width or scaled, scaled - left)

    def fit(self, image: "Image.Image", *, smooth: bool, padding: int = 0) -> "Image.Image":
        """Resize an image.

        Args:
            image: The image.
            smooth: Whether to interpolate bicubically instead of by the nearest pixel.
            padding: Value of the padding pixels.
        """
        pillow = require("PIL.Image", "Scaling images")
        how = pillow.Resampling.BICUBIC if smooth else pillow.Resampling.NEAREST
        scaled = self._scaled_width(image.height, image.width), self.height
        image = image if image.size == scaled else image.resize(scaled, how)
        if self.width in (None, image.width):
            return image
        fitted: Image.Image = pillow.new(image.mode, (self.width, self.height), (padding,) * len(image.getbands()))
        fitted.paste(image, (-_columns_to_cut(image.width, self.width), 0))
        return fitted

    def _scaled_width(self, height: int, width: int) -> int:
        return max(1, width * self.height // height)


def _columns_to_cut(scaled: int, wanted: int | None) -> int:
    """Return the number of columns to crop on the left; negative to pad."""
    return 0 if wanted is None else (scaled - wanted) // 2
