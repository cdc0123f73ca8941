"""One size for all frames of a stream."""

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
    """Scale to a height, the width following; then, if asked, cut or pad the sides to a width.

    Frames are scaled bicubically, labels by the nearest pixel. What is padded is black in the frame and void in the
    labels; `Scenes.inside` says where it is when there are no labels.

    Attributes:
        height: In pixels.
        width: In pixels; None leaves what scaling gives, rounded down. With a width, frames of any aspect fit into one
            batch.

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
        """Height and width that a picture of this height and width comes out at."""
        return self.height, self.width or self._scaled_width(height, width)

    def content_box(self, height: int, width: int) -> Box:
        """The part of the result that shows the picture; the rest is padding."""
        scaled = self._scaled_width(height, width)
        left = _columns_to_cut(scaled, self.width)
        return 0, max(0, -left), self.height, min(self.width or scaled, scaled - left)

    def fit(self, image: "Image.Image", *, smooth: bool, padding: int = 0) -> "Image.Image":
        """Bring a picture to size.

        Args:
            image: The picture.
            smooth: Bicubic if true, else by the nearest pixel.
            padding: The value of pixels beside the picture.
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
    """Columns to cut on the left; negative, columns to add."""
    return 0 if wanted is None else (scaled - wanted) // 2
